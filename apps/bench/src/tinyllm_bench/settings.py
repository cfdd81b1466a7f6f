"""What was asked for on the command line, checked."""

import math
from dataclasses import dataclass
from pathlib import Path

from tinyllm_bench.errors import UsageError

DTYPES = ("auto", "float32", "float16", "bfloat16")
PEERS = ("mlx-lm", "llama.cpp")
PARTS = ("ops", "model")
IMAGES = (".png", ".svg", ".pdf")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All options of a run.

    Attributes:
        shape: name of a shape, whose weights are random.
        model: a checkpoint to measure instead: a folder, "pico", or owner/name on the Hub.
        bits: of a number in a random matrix; 16 and 32 are plain floats. None is 4.
        group_size: numbers that share a scale. None is 64.
        mode: how codes are meant. None is "affine".
        dtype: of the arithmetic.
        ops: names of the OpSets to compare; all without any.
        op: names of the operations to time; all without any.
        only: "ops" or "model"; None is both.
        prompt_tokens: length of the prompt that prefill reads.
        context: tokens in the cache when decoding begins; None is as many as the prompt has.
        decode_tokens: tokens of one sample of decoding at most.
        batch: rows of the batch that operations are timed with, beside one and a prompt.
        seconds: of each operation, size and OpSet; a whole model gets ten times as many.
        peers: whether other programs are measured too.
        peer: only these of them.
        as_json: whether the report is one JSON document.
        plot: the image to write.

    Raises:
        UsageError: a value is out of its range, or two exclude each other.
    """

    shape: str = "pico"
    model: str | None = None
    bits: int | None = None
    group_size: int | None = None
    mode: str | None = None
    dtype: str = "auto"
    ops: tuple[str, ...] = ()
    op: tuple[str, ...] = ()
    only: str | None = None
    prompt_tokens: int = 128
    context: int | None = None
    decode_tokens: int = 32
    batch: int = 8
    seconds: float = 0.5
    peers: bool = False
    peer: tuple[str, ...] = ()
    as_json: bool = False
    plot: Path | None = None

    def __post_init__(self) -> None:
        """Check every range. A comparison with NaN is false, so that NaN fails."""
        _one_of("--dtype", self.dtype, DTYPES)
        if self.only is not None:
            _one_of("--only", self.only, PARTS)
        for option, count, least in (
            ("--prompt-tokens", self.prompt_tokens, 1),
            ("--context", self.keys_before, 0),
            ("--decode-tokens", self.decode_tokens, 1),
            ("--batch", self.batch, 1),
        ):
            _within(option, count, f"{least} to 1,000,000", least <= count <= 1_000_000)
        _within("--seconds", self.seconds, "a number above 0", 0 < self.seconds < math.inf)
        if self.plot is not None:
            _one_of("--plot", self.plot.suffix.lower(), IMAGES)
        if self.op and self.only == "model":
            raise UsageError("--op: times operations, which --only model leaves out")
        if self.peers and not self.times_model:
            raise UsageError("--peers: compares whole models, which --op and --only ops leave out")
        for name in self.peer:
            _one_of("--peer", name, PEERS)
        if self.peer and not self.peers:
            raise UsageError("--peer: chooses among those of --peers, which is missing")
        if self.model is not None:
            for option, value in (
                ("--bits", self.bits),
                ("--group-size", self.group_size),
                ("--mode", self.mode),
            ):
                if value is not None:
                    raise UsageError(f"{option}: is for random weights; --model has its own")

    @property
    def keys_before(self) -> int:
        """Tokens in the cache when decoding begins."""
        return self.prompt_tokens if self.context is None else self.context

    @property
    def times_ops(self) -> bool:
        """Whether operations are timed one by one."""
        return self.only != "model"

    @property
    def times_model(self) -> bool:
        """Whether the whole model is timed; naming operations leaves it out."""
        return self.only != "ops" and not self.op


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    _within(option, value or "nothing", f"one of {', '.join(allowed)}", value in allowed)


def _within(option: str, value: str | float | int, allowed: str, holds: bool) -> None:
    if not holds:
        raise UsageError(f"{option}: expected {allowed}, got {value}")
