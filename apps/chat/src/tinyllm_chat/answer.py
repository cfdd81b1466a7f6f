"""An answer, and what it took."""

from dataclasses import dataclass
from typing import Literal

from tinyllm_qwen import Stats

Ending = Literal["stop", "length", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the model said to one question.

    Attributes:
        text: the answer.
        reasoning: the thinking before it, empty if there was none.
        finish_reason: "stop" when the model was done or met a stop string, "length" when the
            tokens ran out, "interrupted" when the user stopped it.
        stats: counts and times; None if it was stopped before the first token.
        seed: what random numbers were drawn from.
        forgotten: turns that the model no longer saw from here on.
    """

    text: str
    reasoning: str
    finish_reason: Ending
    stats: Stats | None
    seed: int
    forgotten: int = 0
