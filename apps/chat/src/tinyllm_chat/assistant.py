"""The interface of a model that answers a conversation, and the answer that it gives."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from tinyllm_qwen import Stats
from tinyllm_qwen.text.reasoning import Segment

from tinyllm_chat.conversation import Conversation
from tinyllm_chat.settings import Settings

Progress = Callable[[int, int], None]
"""A callback with two arguments: the work done so far and the total work."""

ShowSegment = Callable[[Segment], None]
"""A callback for each new segment of the reasoning or the answer."""

AnswerFinishReason = Literal["stop", "length", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to one question.

    Attributes:
        text: the answer.
        reasoning: the reasoning before the answer; empty if there is none.
        finish_reason: "stop" after an end token or a stop string, "length" at the token limit,
            "interrupted" if the user stopped the answer.
        stats: counts and times; None if the user stopped the answer before its first token.
        seed: the seed of the random numbers.
        dropped_turns: the number of oldest turns dropped to make room for this question and answer.
    """

    text: str
    reasoning: str
    finish_reason: AnswerFinishReason
    stats: Stats | None
    seed: int
    dropped_turns: int = 0


class AnswerCollector:
    """Shows each segment of an answer in progress, and stores its text.

    Attributes:
        text: the answer so far.
        reasoning: the reasoning so far.
    """

    def __init__(self, show: ShowSegment) -> None:
        """Start an answer.

        Args:
            show: called with each segment.
        """
        self.text = self.reasoning = ""
        self._show = show

    def add(self, *segments: Segment) -> None:
        """Show and store segments."""
        for segment in segments:
            if segment.thinking:
                self.reasoning += segment.text
            else:
                self.text += segment.text
            self._show(segment)


@runtime_checkable
class Assistant(Protocol):
    """A model that answers, loaded by this process or by a server.

    Attributes:
        settings: the options of the session; `settings.model` names the model in use.
        enable_thinking: the `enable_thinking` of the chat template; None for its default.
        answers: the number of answers so far, which the seed of the next answer depends on.
        load_seconds: the time to load the model, or to reach the server.
    """

    settings: Settings
    enable_thinking: bool | None
    answers: int
    load_seconds: float

    @property
    def description(self) -> str:
        """The kernels, dtype and device, or the server's URL, as one line."""

    @property
    def metadata(self) -> dict[str, object]:
        """The description as fields of a JSON record."""

    @property
    def peak_memory(self) -> int | None:
        """MLX's peak memory so far, in bytes; None if a server runs the model."""

    @property
    def max_model_len(self) -> int:
        """The maximum number of tokens of a prompt and its answer together."""

    @property
    def is_greedy(self) -> bool:
        """True if the same question always gets the same answer."""

    def stats_lines(self) -> list[str]:
        """Return the lines of /stats about the model."""

    def notices(self) -> list[str]:
        """Return notices about settings with an unexpected effect, for the start of a session."""

    def reply(
        self,
        conversation: Conversation,
        show: ShowSegment,
        *,
        on_prefill: Progress = ...,
        should_stop: Callable[[], bool] = ...,
    ) -> Answer:
        """Answer the last question of a conversation.

        The caller adds the answer to the conversation.

        Args:
            conversation: a conversation that ends with a question.
            show: called with each segment of text.
            on_prefill: called with the prompt tokens computed so far, and their total number.
            should_stop: called between steps; True ends the answer.
        """
