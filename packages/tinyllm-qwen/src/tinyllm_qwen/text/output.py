"""The output of generation: the text of each token, with counts and times."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tinyllm_qwen.sampling.sampler import Sample
from tinyllm_qwen.text.stop import StopStrings
from tinyllm_qwen.text.tokenizer import Tokenizer

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Stats:
    """Counts and times of a generation so far.

    Attributes:
        prompt_tokens: the number of prompt tokens.
        cached_tokens: the number of prompt tokens that were in the cache before the call.
        generated_tokens: the number of generated tokens, the end token included.
        prefill_seconds: the time from the first `next` to the first token.
        decode_seconds: the time from the first to the latest token, including the time that the
            caller takes between two tokens.
        draft_tokens: the number of verified draft tokens.
        accepted_tokens: the number of accepted draft tokens.
    """

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    prefill_seconds: float
    decode_seconds: float
    draft_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens computed per second."""
        return (self.prompt_tokens - self.cached_tokens) / max(self.prefill_seconds, 1e-9)

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first token; 0 without a second token or a time."""
        if self.generated_tokens < 2 or self.decode_seconds <= 0:
            return 0.0
        return (self.generated_tokens - 1) / self.decode_seconds


@dataclass(frozen=True)
class Piece:
    """One generated token, and the text that became complete with the token.

    Text is held back while a character is incomplete, or while it may be the start of a stop
    string. A piece may therefore have no text, or the text of several tokens.

    Attributes:
        text: the text to show next.
        token: the id of the token.
        finish_reason: in the last piece, "stop" for an end token or a stop string, and "length" if
            the limit of tokens is reached. None in all pieces before.
        stats: counts and times, this token included.
        sample: the log-probabilities of this token and of the most likely tokens, not evaluated.
    """

    text: str
    token: int
    finish_reason: FinishReason | None
    stats: Stats
    sample: Sample

    @property
    def logprob(self) -> float:
        """The log-probability of the token under the model, evaluated at the first access."""
        return float(self.sample.logprob)

    @property
    def top_logprobs(self) -> list[tuple[int, float]]:
        """The most likely tokens with log-probabilities; as many as requested by `top_logprobs`."""
        tokens, logprobs = self.sample.top_tokens, self.sample.top_logprobs
        if tokens is None or logprobs is None:
            return []
        return [(int(token), float(p)) for token, p in zip(tokens, logprobs, strict=True)]


class OutputProcessor:
    """A converter of generated tokens to text, which also detects the end of the text.

    Text is held back while a character is incomplete, or while it may be the start of a stop
    string.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), *, ignore_end: bool = False
    ) -> None:
        """Start an empty text.

        Args:
            tokenizer: the tokenizer of the model.
            stop: strings at which the text ends. The text does not contain them. The name of a
                special token, which is not in the text, ends it at the token.
            ignore_end: True to continue after end tokens, which have no text.

        Raises:
            ValueError: if a stop string is empty.
        """
        self._end_tokens = frozenset() if ignore_end else tokenizer.eos_token_ids
        self._stream = tokenizer.stream()
        self._stops = StopStrings(stop) if stop else None
        self._stop_tokens = {
            token: name for name in stop if (token := tokenizer.special_token_id(name)) is not None
        }
        self._stop_token: str | None = None  # the name of the token that ended the text

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text; None if another reason did, or none yet."""
        found = None if self._stops is None else self._stops.found
        return found or self._stop_token

    def push(self, token: int, *, ended: bool) -> tuple[str, FinishReason | None]:
        """Add the next token.

        Args:
            token: the id of the token.
            ended: True if this is the last token because of a limit.

        Returns:
            The text to show next, and the finish reason if the text ends with this token.
        """
        if token in self._end_tokens:
            return self._rest(), "stop"
        if token in self._stop_tokens:
            rest, self._stop_token = self._rest(), self._stop_tokens[token]
            return rest, "stop"
        shown, met = self._until_stop(self._stream.push(token))
        if met:
            return shown, "stop"
        if not ended:
            return shown, None
        shown += self._rest()
        return shown, "length" if self.stop is None else "stop"

    def _until_stop(self, text: str) -> tuple[str, bool]:
        """Return the text that may be shown, and True if a stop string was found."""
        return (text, False) if self._stops is None else self._stops.push(text)

    def _rest(self) -> str:
        """Return the text that was held back, at the end of the text."""
        shown, met = self._until_stop(self._stream.finish())
        return shown if met or self._stops is None else shown + self._stops.flush()
