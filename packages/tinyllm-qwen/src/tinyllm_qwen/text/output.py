"""The output of generation: text, token by token, with its counts and times."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tinyllm_qwen.sampling.sample import Sample
from tinyllm_qwen.text.stop import StopStrings
from tinyllm_qwen.text.tokenizer import Tokenizer

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Stats:
    """Counts and times of a generation so far.

    Attributes:
        prompt_tokens: tokens of the prompt.
        cached_tokens: prompt tokens that were in the cache already.
        generated_tokens: tokens chosen, the end token included.
        prefill_seconds: the time from the first `next` to the first token.
        decode_seconds: the time from the first token to the latest, the caller's own time
            included.
    """

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    prefill_seconds: float
    decode_seconds: float

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens computed a second."""
        return (self.prompt_tokens - self.cached_tokens) / max(self.prefill_seconds, 1e-9)

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first token; 0 if there is no second token to time."""
        if self.generated_tokens < 2:
            return 0.0
        return (self.generated_tokens - 1) / max(self.decode_seconds, 1e-9)


@dataclass(frozen=True)
class Piece:
    """A token, and the text that it completed.

    Text is held back while a character is incomplete or while it may be the beginning of a stop
    string, so a piece may have no text, or the text of several tokens.

    Attributes:
        text: the text to show next.
        token: the id chosen.
        finish_reason: None before the last piece; "stop" for an end token or a stop string,
            "length" after the most tokens.
        stats: counts and times, this token included.
        sample: the log-probabilities of the token and of the likeliest ones, still on the device.
    """

    text: str
    token: int
    finish_reason: FinishReason | None
    stats: Stats
    sample: Sample

    @property
    def logprob(self) -> float:
        """The log-probability that the model gave the token, computed at the first access."""
        return float(self.sample.logprob)

    @property
    def top_logprobs(self) -> list[tuple[int, float]]:
        """The likeliest tokens and their log-probabilities, `top_logprobs` of them."""
        tokens, logprobs = self.sample.top_tokens, self.sample.top_logprobs
        if tokens is None or logprobs is None:
            return []
        return [(int(token), float(p)) for token, p in zip(tokens, logprobs, strict=True)]


class OutputProcessor:
    """A converter of chosen tokens to text to show, which also finds the end of the text.

    Text is held back while a character is incomplete or while it may be the beginning of a stop
    string.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), *, ignore_end: bool = False
    ) -> None:
        """Start an empty text.

        Args:
            tokenizer: the tokenizer, with the bytes of tokens and the end tokens.
            stop: strings before which the text ends.
            ignore_end: True to go on after end tokens, which are not shown.

        Raises:
            ValueError: if a stop string is empty.
        """
        self._end_tokens = frozenset() if ignore_end else tokenizer.eos_token_ids
        self._stream = tokenizer.stream()
        self._stops = StopStrings(stop) if stop else None

    def push(self, token: int, *, ended: bool) -> tuple[str, FinishReason | None]:
        """Take the next token.

        Args:
            token: its id.
            ended: True if no further token will come.

        Returns:
            The text that the token completes, and the reason if the text ends here.
        """
        if token in self._end_tokens:
            return self._rest(), "stop"
        shown, met = self._until_stop(self._stream.push(token))
        if met:
            return shown, "stop"
        return (shown + self._rest(), "length") if ended else (shown, None)

    def _until_stop(self, text: str) -> tuple[str, bool]:
        """Return the text that may be shown, and True if a stop string was found."""
        return (text, False) if self._stops is None else self._stops.push(text)

    def _rest(self) -> str:
        """Return the text that was held back."""
        shown, met = self._until_stop(self._stream.finish())
        return shown if met or self._stops is None else shown + self._stops.flush()
