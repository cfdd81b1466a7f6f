"""The settings of a conversion."""

from dataclasses import dataclass

import mlx.core as mx
from tinyllm_ops.quantization.tensor import check_format

from tinyllm_qwen.checkpoint.tensor_reader import MLX_DTYPES
from tinyllm_qwen.config.quantization import PackedFormat

# About the largest file that mlx-lm writes. The Hugging Face Hub accepts files of this size.
SHARD_BYTES = 5_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionConfig:
    """The format, dtype and file sizes that `convert` writes.

    Attributes:
        packed: the format of the matrices; None for no quantization.
        dtype: the dtype of unpacked tensors and of affine scales and biases; None keeps the dtypes
            of the source.
        skip: patterns (`fnmatch`) of matrices that are not packed. They match MLX's module paths,
            such as "lm_head" or "model.layers.0.*".
        shard_bytes: the largest number of tensor bytes in a file. A tensor with more bytes has a
            file of its own.

    Raises:
        ValueError: if a value is not allowed.
    """

    packed: PackedFormat | None = None
    dtype: mx.Dtype | None = None
    skip: tuple[str, ...] = ()
    shard_bytes: int = SHARD_BYTES

    def __post_init__(self) -> None:
        """Refuse settings that cannot be written or would have no effect."""
        if self.packed is not None:
            check_format(self.packed.group_size, self.packed.bits, self.packed.mode)
        elif self.skip:
            raise ValueError("skip: expected a format beside it, since nothing is packed otherwise")
        if self.dtype is not None and self.dtype not in MLX_DTYPES.values():
            raise ValueError(f"dtype: expected float32, float16 or bfloat16, got {self.dtype}")
        if self.shard_bytes < 1:
            raise ValueError(f"shard_bytes: expected at least 1, got {self.shard_bytes}")
