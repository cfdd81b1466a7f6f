"""A request that the engine has taken."""

from __future__ import annotations

from tinyllm_qwen.answer_text import AnswerText

from tinyllm_engine.chooser import Chooser
from tinyllm_engine.output import FinishReason, Usage
from tinyllm_engine.request import Request
from tinyllm_engine.sequence import Sequence


class Handle:
    """What the engine keeps of a request; to the caller it stands for the request.

    Attributes:
        sequence: its tokens and pages.
        chooser: what chooses its tokens.
        text: what turns them into text.
        max_tokens: how many tokens there may be, within the model's context.
        finish_reason: None while it is under way.
    """

    def __init__(
        self, sequence: Sequence, chooser: Chooser, text: AnswerText, max_tokens: int
    ) -> None:
        """Hold the parts."""
        self.sequence = sequence
        self.chooser = chooser
        self.text = text
        self.max_tokens = max_tokens
        self.finish_reason: FinishReason | None = None

    @property
    def request(self) -> Request:
        """What was asked."""
        return self.sequence.request

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        sequence = self.sequence
        return Usage(len(self.request.prompt), sequence.cached or 0, sequence.generated)

    @property
    def left(self) -> int:
        """How many tokens may still be chosen."""
        return self.max_tokens - self.sequence.generated
