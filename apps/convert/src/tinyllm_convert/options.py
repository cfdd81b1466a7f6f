"""The options of the command line, and their checks."""

import math
from dataclasses import dataclass

import mlx.core as mx
from tinyllm_ops.quantization.tensor import AFFINE, AFFINE_BITS, AFFINE_GROUPS, FLOAT_MODES
from tinyllm_qwen import ConversionConfig
from tinyllm_qwen.config.quantization import PackedFormat

from tinyllm_convert.errors import UsageError

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
MODES = (AFFINE, *FLOAT_MODES)
DEFAULT_GROUP_SIZE = 64


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a conversion, as the user gave them.

    Attributes:
        bits: the bits of a code; None if not given.
        group_size: the number of consecutive codes that share a scale; None if not given.
        mode: one of `MODES`; None if not given.
        dtype: the dtype of unquantized tensors, one of `DTYPES`; None keeps the source's dtype.
        skip: patterns of matrices that stay unquantized.
        shard_size: the largest size of a file, in gigabytes.
    """

    bits: int | None = None
    group_size: int | None = None
    mode: str | None = None
    dtype: str | None = None
    skip: tuple[str, ...] = ()
    shard_size: float = 5.0

    def conversion_config(self) -> ConversionConfig:
        """Return the options as the config of a conversion.

        Raises:
            UsageError: if a value is not allowed, or options contradict each other.
        """
        packed = self._format()
        if self.skip and packed is None:
            raise UsageError(
                "--skip: expected --bits or --mode as well: nothing is quantized without them"
            )
        if self.dtype is not None:
            _check_choice("--dtype", self.dtype, tuple(DTYPES))
        shard_bytes = self.shard_size * 1e9
        if not 1 <= shard_bytes < math.inf:  # refuses NaN too: comparisons with NaN are false
            raise UsageError(
                "--shard-size: expected a finite number of gigabytes above 0, got "
                f"{self.shard_size:g}"
            )
        return ConversionConfig(
            packed=packed,
            dtype=None if self.dtype is None else DTYPES[self.dtype],
            skip=self.skip,
            shard_bytes=int(shard_bytes),
        )

    def _format(self) -> PackedFormat | None:
        """Return the format of quantized matrices; None if nothing is quantized."""
        if self.mode is not None:
            _check_choice("--mode", self.mode, MODES)
        if self.mode in FLOAT_MODES:
            bits, group_size = FLOAT_MODES[self.mode]
            for option, given, fixed in (
                ("--bits", self.bits, bits),
                ("--group-size", self.group_size, group_size),
            ):
                if given not in (None, fixed):
                    raise UsageError(
                        f"{option}: expected {fixed}, the only value of {self.mode}, got {given}"
                    )
            return PackedFormat(group_size=group_size, bits=bits, mode=self.mode)
        if self.bits is None:
            for option, value in (("--group-size", self.group_size), ("--mode", self.mode)):
                if value is not None:
                    raise UsageError(f"{option} {value}: expected --bits as well")
            return None
        group_size = DEFAULT_GROUP_SIZE if self.group_size is None else self.group_size
        _check_choice("--bits", self.bits, AFFINE_BITS)
        _check_choice("--group-size", group_size, AFFINE_GROUPS)
        return PackedFormat(group_size=group_size, bits=self.bits, mode=AFFINE)


def _check_choice(option: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{option}: expected one of {', '.join(map(str, allowed))}, got {value}")
