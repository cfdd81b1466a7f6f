"""The prompt of a conversation: its text, and its tokens."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tinyllm_qwen.errors import TemplateError
from tinyllm_qwen.text.reasoning import OPEN


@dataclass(frozen=True)
class ChatPrompt:
    """A rendered conversation, not yet encoded.

    Attributes:
        text: the prompt as text, in which control tokens and text of the same form look alike.
        marked: the text with marks for control tokens. Prompts are equal if these are equal.
    """

    text: str
    marked: str
    _encode: Callable[[str, int | None], list[int]]

    @property
    def opens_reasoning(self) -> bool:
        """True if the prompt ends with `<think>`, as with some templates."""
        return self.text.rstrip().endswith(OPEN)

    def before(self, text: str) -> "ChatPrompt":
        """Return the prompt before the last occurrence of a text.

        Raises:
            TemplateError: if the template has left out the text.
        """
        if text not in self.marked:
            raise TemplateError("the chat template leaves out the last message: send another one")
        end, marked_end = self.text.rindex(text), self.marked.rindex(text)
        return replace(self, text=self.text[:end], marked=self.marked[:marked_end])

    def encode(self, max_tokens: int | None = None) -> list[int]:
        """Return the token ids of the prompt.

        Raises:
            TextTooLongError: if there are more than `max_tokens` tokens.
            CheckpointError: if the pattern that splits texts into words fails on this text.
        """
        return self._encode(self.marked, max_tokens)
