"""The text of an answer, token by token."""

from collections.abc import Sequence

from tinyllm_qwen.text.piece import FinishReason
from tinyllm_qwen.text.stop import StopStrings
from tinyllm_qwen.text.tokenizer import Tokenizer


class OutputProcessor:
    """Turns chosen tokens into text to show, and knows where the text ends.

    Text is held back while a character is incomplete or while it may be the beginning of a stop
    string.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), *, ignore_end: bool = False
    ) -> None:
        """Start an empty text.

        Args:
            tokenizer: gives tokens their bytes, and says which of them end a text.
            stop: strings before which the text ends.
            ignore_end: let the text go on after end tokens, which are not shown.

        Raises:
            ValueError: if a stop string is empty.
        """
        self._end_tokens = frozenset() if ignore_end else tokenizer.eos_token_ids
        self._stream = tokenizer.stream()
        self._stops = StopStrings(stop)

    def push(self, token: int, *, ended: bool) -> tuple[str, FinishReason | None]:
        """The text that the token makes certain, and why the text ends here if it does.

        `ended` says that no further token will come.
        """
        if token in self._end_tokens:
            return self._rest(), "stop"
        shown, met = self._stops.push(self._stream.push(token))
        if met:
            return shown, "stop"
        return (shown + self._rest(), "length") if ended else (shown, None)

    def _rest(self) -> str:
        """What was held back."""
        shown, met = self._stops.push(self._stream.finish())
        return shown if met else shown + self._stops.flush()
