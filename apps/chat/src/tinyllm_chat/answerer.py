"""What a conversation is held with."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from tinyllm_qwen.text.reasoning import Segment

from tinyllm_chat.answer import Answer
from tinyllm_chat.conversation import Conversation
from tinyllm_chat.settings import Settings

Progress = Callable[[int, int], None]
Show = Callable[[Segment], None]


@runtime_checkable
class Answerer(Protocol):
    """A model that answers: one that was loaded, or one on a server.

    Attributes:
        settings: what was asked for, and which model it became.
        think: whether the model is to think first; None leaves it to the template.
        load_seconds: what it took to have the model.
    """

    settings: Settings
    think: bool | None
    load_seconds: float

    @property
    def label(self) -> str:
        """What computes."""

    @property
    def facts(self) -> dict[str, object]:
        """The same for programs."""

    @property
    def peak_memory(self) -> int | None:
        """Bytes that MLX has held at most; None where another machine has them."""

    @property
    def window(self) -> int:
        """Tokens of the context."""

    @property
    def is_greedy(self) -> bool:
        """Whether the same question gets the same answer."""

    def details(self) -> list[str]:
        """The lines of /stats that tell of the model."""

    def notices(self) -> list[str]:
        """What the user should know before the conversation begins."""

    def reply(
        self,
        conversation: Conversation,
        show: Show,
        *,
        on_prefill: Progress = ...,
        stopped: Callable[[], bool] = ...,
    ) -> Answer:
        """Answer the last question of a conversation, which is left as it is.

        Args:
            conversation: it ends with a question.
            show: called with each piece of text.
            on_prefill: called with the prompt's tokens computed so far and in all.
            stopped: asked between steps whether the user wants no more.
        """
