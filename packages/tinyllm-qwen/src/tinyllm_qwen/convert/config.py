"""The settings of a conversion."""

from dataclasses import dataclass

import mlx.core as mx
from tinyllm_ops.quantization.tensor import check_format

from tinyllm_qwen.checkpoint.tensor_reader import MLX_DTYPES
from tinyllm_qwen.config.quantization import PackedFormat

SHARD_BYTES = 5_000_000_000  # about where mlx-lm cuts, and what file systems and the Hub like


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionConfig:
    """The format, dtype and file sizes that `convert` writes.

    Attributes:
        packed: the format of the matrices; None leaves them as they are.
        dtype: of everything that is not packed, and of affine scales; None keeps the files' own.
        skip: patterns of matrices to leave alone, by module path as MLX names it, such as
            "lm_head" or "model.layers.0.*" (`fnmatch`).
        shard_bytes: the largest file, unless one tensor is larger.

    Raises:
        ValueError: if a value is not allowed, with those that are.
    """

    packed: PackedFormat | None = None
    dtype: mx.Dtype | None = None
    skip: tuple[str, ...] = ()
    shard_bytes: int = SHARD_BYTES

    def __post_init__(self) -> None:
        """Refuse what could not be written, or would have no effect."""
        if self.packed is not None:
            check_format(self.packed.group_size, self.packed.bits, self.packed.mode)
        elif self.skip:
            raise ValueError("skip: expected a format beside it, since nothing is packed otherwise")
        if self.dtype is not None and self.dtype not in MLX_DTYPES.values():
            raise ValueError(f"dtype: expected float32, float16 or bfloat16, got {self.dtype}")
        if self.shard_bytes < 1:
            raise ValueError(f"shard_bytes: expected at least 1, got {self.shard_bytes}")
