"""What was asked for on the command line, checked."""

import math
from dataclasses import dataclass, field

from tinyllm_chat.errors import UsageError

OPS = ("auto", "cpu", "metal", "mlx", "reference")
DTYPES = ("auto", "float32", "float16", "bfloat16")
KV_BITS = (4, 8)
PICO = "pico"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All options of a session; None leaves a choice to the checkpoint.

    Attributes:
        model: a folder, "pico" or the name of a repository on the Hub.
        revision: branch, tag or commit of a repository.
        ops: which implementation of the maths.
        dtype: of the arithmetic.
        split: what each of several processes has of the model; see `tinyllm_qwen.split`.
        system: the system message.
        max_tokens: of one answer, its thinking included.
        temperature: 0 takes the likeliest token.
        top_k: choose from so many of the likeliest tokens; 0 is all.
        top_p: choose from the likeliest tokens that hold this much of the probability.
        min_p: choose from tokens at least so likely, relative to the likeliest.
        repetition_penalty: above 1, tokens that occurred become less likely.
        seed: of the first answer; the next one's is one more, and so on.
        stop: strings that end an answer.
        kv_bits: width of the cache's keys and values.
        max_context: a bound on the context, below the model's own.
        think: whether the model is to think first; None leaves it to its template.
        server: the address of a server that has the model; None loads it here.
        api_key: what the server wants to see.

    Raises:
        UsageError: a value is out of its range.
    """

    model: str = PICO
    revision: str | None = None
    ops: str = "auto"
    dtype: str = "auto"
    split: str = "heads"
    system: str | None = None
    max_tokens: int = 4096
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    kv_bits: int | None = None
    max_context: int | None = None
    think: bool | None = None
    server: str | None = None
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check every range. A comparison with NaN is false, so that NaN fails each of these."""
        _one_of("--ops", self.ops, OPS)
        _one_of("--dtype", self.dtype, DTYPES)
        _within("--max-tokens", self.max_tokens, "at least 1", self.max_tokens >= 1)
        if self.temperature is not None:
            fine = 0 <= self.temperature < math.inf
            _within("--temp", self.temperature, "a number from 0 up", fine)
        if self.top_k is not None:
            _within("--top-k", self.top_k, "0 (all tokens) or more", 0 <= self.top_k < 2**31)
        if self.top_p is not None:
            _within("--top-p", self.top_p, "above 0 and at most 1", 0 < self.top_p <= 1)
        if self.min_p is not None:
            _within("--min-p", self.min_p, "from 0 to 1", 0 <= self.min_p <= 1)
        penalty = self.repetition_penalty
        if penalty is not None:
            fine = 0 < penalty < math.inf
            _within("--repetition-penalty", penalty, "a number above 0, 1 being off", fine)
        if self.seed is not None:
            _within("--seed", self.seed, "from 0 to 2^64 - 1", 0 <= self.seed < 2**64)
        if "" in self.stop:
            raise UsageError("--stop: expected at least one character, got an empty string")
        if self.kv_bits is not None:
            _within("--kv-bits", self.kv_bits, "4 or 8", self.kv_bits in KV_BITS)
        if self.max_context is not None:
            _within("--max-context", self.max_context, "at least 2 tokens", self.max_context >= 2)
        if self.server is not None:
            self._check_server(self.server)

    def _check_server(self, server: str) -> None:
        """Refuse what the server, not the client, decides."""
        fine = server.startswith(("http://", "https://"))
        _within("--server", server, "an address such as http://127.0.0.1:8000", fine)
        for option, given in (
            ("--ops", self.ops != "auto"),
            ("--dtype", self.dtype != "auto"),
            ("--split", self.split != "heads"),
            ("--kv-bits", self.kv_bits is not None),
            ("--max-context", self.max_context is not None),
            ("--revision", self.revision is not None),
        ):
            if given:
                raise UsageError(f"{option}: not beside --server, which has the model already")


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    _within(option, value, f"one of {', '.join(allowed)}", value in allowed)


def _within(option: str, value: str | float | int, allowed: str, holds: bool) -> None:
    if not holds:
        raise UsageError(f"{option}: expected {allowed}, got {value}")
