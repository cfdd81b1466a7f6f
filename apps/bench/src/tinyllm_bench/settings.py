"""Options of `bench`, `bench ops` and `bench model`, with their checks."""

import math
from dataclasses import dataclass

from tinyllm_cli.messages import UsageError

from tinyllm_bench.command_line import option
from tinyllm_bench.shapes import PICO, SHAPES

PEERS = ("mlx-lm", "llama.cpp", "openvino")
PARTS = ("ops", "model")
PLAIN_BITS = (16, 32)  # of numbers that are not quantized


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Options of a run.

    Raise `UsageError` if a value is out of its range, or two options exclude each other.
    """

    shape: str | None = option(
        None, "NAME", f"{', '.join(SHAPES[:-1])} or {SHAPES[-1]}. [default: {PICO}]"
    )
    model: str | None = option(None, "ID", "A checkpoint instead: a folder, owner/name, or pico.")
    bits: int | None = option(
        None, "N", "Bits of random weights: 2-6, 8, 16, 32. [default: 4 if affine]"
    )
    group_size: int | None = option(
        None, "N", "Weights that share a scale. [default: 64 if affine]"
    )
    mode: str | None = option(None, "MODE", "affine, mxfp4, mxfp8 or nvfp4. [default: affine]")
    dtype: str = option(
        "auto",
        "auto|float32|float16|bfloat16",
        "Type of activations. auto: bfloat16, or float32 for MLX's operations on a CPU.",
    )
    ops: list[str] = option([], "NAME", "Only this OpSet; may be repeated.")
    op: list[str] = option([], "NAME", "Only this operation, no model; may be repeated.")
    only: str | None = option(None, "ops|model", "Only operations, or only the model.")
    prompt_tokens: int = option(128, "N", "Tokens of the prompt.")
    context: int | None = option(
        None, "N", "Tokens in the cache before decoding. [default: as the prompt]"
    )
    kv_bits: int | None = option(
        None, "N", "Quantize cached keys and values of the model to 8 or 4 bits."
    )
    decode_tokens: int = option(32, "N", "Most tokens in one sample of decoding.")
    batch: int = option(8, "N", "Batch size of operations.")
    seconds: float = option(
        0.5, "S", "Time for each operation, size and OpSet. A model gets ten times."
    )
    peers: bool = option(False, None, "Also measure mlx-lm, llama.cpp and OpenVINO, if installed.")
    peer: list[str] = option(
        [], "NAME", "Only this peer, mlx-lm, llama.cpp or openvino; may be repeated."
    )
    as_json: bool = option(False, None, "Print one JSON document instead of tables.", "--json")

    def __post_init__(self) -> None:
        """Check every range. A comparison with NaN is false, so NaN is refused.

        The shape is pico if neither a shape nor a model is given.
        """
        if self.dtype != "auto":
            from tinyllm_kernels.backend_choice import DTYPES  # imported here, because it loads MLX

            _check_choice("--dtype", self.dtype, tuple(DTYPES))
        if self.only is not None:
            _check_choice("--only", self.only, PARTS)
        for name, count, least in (
            ("--prompt-tokens", self.prompt_tokens, 1),
            ("--context", self.context_tokens, 0),
            ("--decode-tokens", self.decode_tokens, 1),
            ("--batch", self.batch, 1),
        ):
            _check(name, count, f"{least} to 1,000,000", least <= count <= 1_000_000)
        _check("--seconds", self.seconds, "a finite number above 0", 0 < self.seconds < math.inf)
        if self.op and self.only == "model":
            raise UsageError("--op: times operations, which --only model leaves out")
        self._check_parts()
        if self.peers and not self.times_model:
            raise UsageError("--peers: compares whole models, which --op and --only ops leave out")
        for peer in self.peer:
            _check_choice("--peer", peer, PEERS)
        if self.kv_bits is not None:
            self._check_kv_bits(self.kv_bits)
        if self.peer and not self.peers:
            raise UsageError("--peer: expected together with --peers, got no --peers")
        self._check_weights()
        if self.model is None and self.shape is None:
            object.__setattr__(self, "shape", PICO)

    def _check_weights(self) -> None:
        """Refuse options of random weights with a checkpoint, and of codes with plain floats."""
        random = {"--bits": self.bits, "--group-size": self.group_size, "--mode": self.mode}
        if self.model is not None and self.shape is not None:
            raise UsageError("--shape: makes a model of its own, without --model")
        for name, value in random.items():
            if self.model is not None and value is not None:
                raise UsageError(f"{name}: is for random weights; --model has its own")
            if self.bits in PLAIN_BITS and name != "--bits" and value is not None:
                raise UsageError(f"{name}: expected none with --bits {self.bits}, plain floats")

    def _check_parts(self) -> None:
        """Refuse options of a part that `only` leaves out. The default value is not noticed."""
        if self.only == "model" and self.batch != Settings.batch:
            raise UsageError("--batch: is for operations, which --only model leaves out")
        if self.only == "ops" and self.decode_tokens != Settings.decode_tokens:
            raise UsageError("--decode-tokens: is for the model, which --only ops leaves out")

    def _check_kv_bits(self, kv_bits: int) -> None:
        """Refuse other bits, and runs without a model that has such a cache."""
        _check("--kv-bits", kv_bits, "8 or 4", kv_bits in (4, 8))
        if not self.times_model:
            raise UsageError("--kv-bits: is for the model, which --op and --only ops leave out")
        if self.peers:
            raise UsageError("--kv-bits: is not for --peers, whose caches are not quantized")

    @property
    def context_tokens(self) -> int:
        """Tokens in the cache when decoding begins."""
        return self.prompt_tokens if self.context is None else self.context

    @property
    def times_ops(self) -> bool:
        """True if single operations are timed."""
        return self.only != "model"

    @property
    def times_model(self) -> bool:
        """True if the whole model is timed. Naming operations excludes the model."""
        return self.only != "ops" and not self.op

    @property
    def chosen_peers(self) -> list[str]:
        """Names of the peers to measure."""
        return [name for name in PEERS if self.peers and (not self.peer or name in self.peer)]


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    _check(name, value or "nothing", f"one of {', '.join(allowed)}", value in allowed)


def _check(name: str, value: object, allowed: str, holds: bool) -> None:
    if not holds:
        raise UsageError(f"{name}: expected {allowed}, got {value}")
