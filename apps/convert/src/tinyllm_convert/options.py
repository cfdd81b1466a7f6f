"""What was asked for on the command line, checked."""

import math
from dataclasses import dataclass

import mlx.core as mx
from tinyllm_ops.quantization.tensor import AFFINE, AFFINE_BITS, AFFINE_GROUPS, FLOAT_MODES
from tinyllm_qwen import ConversionConfig
from tinyllm_qwen.config.quantization import PackedFormat

from tinyllm_convert.errors import UsageError

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
MODES = (AFFINE, *FLOAT_MODES)
GROUP_SIZE = 64


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options that say what to make; None where they were not given."""

    bits: int | None = None
    group_size: int | None = None
    mode: str | None = None
    dtype: str | None = None
    skip: tuple[str, ...] = ()
    shard_size: float = 5.0

    def conversion_config(self) -> ConversionConfig:
        """What they come to.

        Raises:
            UsageError: if a value is not allowed, or does not go with another.
        """
        packed = self._format()
        if self.skip and packed is None:
            raise UsageError("--skip: expected --bits or --mode beside it: nothing is packed")
        if self.dtype is not None:
            _one_of("--dtype", self.dtype, tuple(DTYPES))
        shard_bytes = self.shard_size * 1e9
        if not 1 <= shard_bytes < math.inf:  # false for NaN
            raise UsageError(f"--shard-size: expected gigabytes above 0, got {self.shard_size:g}")
        return ConversionConfig(
            packed=packed,
            dtype=None if self.dtype is None else DTYPES[self.dtype],
            skip=self.skip,
            shard_bytes=int(shard_bytes),
        )

    def _format(self) -> PackedFormat | None:
        """The format of matrices, None where they stay as they are."""
        if self.mode is not None:
            _one_of("--mode", self.mode, MODES)
        if self.mode in FLOAT_MODES:
            bits, group_size = FLOAT_MODES[self.mode]
            for option, given, fixed in (
                ("--bits", self.bits, bits),
                ("--group-size", self.group_size, group_size),
            ):
                if given not in (None, fixed):
                    raise UsageError(f"{option}: {self.mode} means {fixed}, got {given}")
            return PackedFormat(group_size=group_size, bits=bits, mode=self.mode)
        if self.bits is None:
            for option, value in (("--group-size", self.group_size), ("--mode", self.mode)):
                if value is not None:
                    raise UsageError(f"{option} {value}: expected --bits beside it")
            return None
        group_size = GROUP_SIZE if self.group_size is None else self.group_size
        _one_of("--bits", self.bits, AFFINE_BITS)
        _one_of("--group-size", group_size, AFFINE_GROUPS)
        return PackedFormat(group_size=group_size, bits=self.bits)


def _one_of(option: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{option}: expected one of {', '.join(map(str, allowed))}, got {value}")
