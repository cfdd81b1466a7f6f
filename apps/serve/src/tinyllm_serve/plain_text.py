"""Text that is not taken apart."""

from tinyllm_serve.parts import Content, Part


class PlainText:
    """A parser for plain completions: all is content.

    Attributes:
        thinking: never.
        calls: none.
    """

    thinking = False
    calls = 0

    def push(self, text: str) -> list[Part]:
        """Take the next piece, and give it."""
        return [Content(text)] if text else []

    def finish(self) -> list[Part]:
        """Nothing was held back."""
        return []
