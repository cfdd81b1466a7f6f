"""Storage format of the matrices of a random model, with the dtype of its activations."""

import math
from dataclasses import dataclass

import mlx.core as mx
from tinyllm_cli.messages import UsageError
from tinyllm_kernels.backend_choice import DTYPES
from tinyllm_ops.quantization.tensor import (
    AFFINE,
    FLOAT_MODES,
    QUANTIZATION_MODES,
    QuantizationMode,
    check_format,
    is_quantization_mode,
)

from tinyllm_bench.settings import PLAIN_BITS


@dataclass(frozen=True)
class WeightFormat:
    """Storage format of matrices. Raise `UsageError` if MLX does not define the format."""

    bits: int  # 16 or 32 for plain floats, otherwise the bits of a quantized code
    group_size: int  # codes that share a scale
    mode: QuantizationMode  # mode of `QuantizedTensor`
    dtype: mx.Dtype  # dtype of activations and of all tensors that are not quantized

    def __post_init__(self) -> None:
        """Check that MLX defines the format, or that plain floats have the requested bits."""
        if self.is_quantized:
            try:
                check_format(self.group_size, self.bits, self.mode)
            except ValueError as error:
                raise UsageError(f"--bits, --group-size, --mode: {error}") from error
        elif self.dtype.size * 8 != self.bits:
            raise UsageError(
                f"--dtype: expected a type of {self.bits} bits with --bits {self.bits}, "
                f"got {dtype_name(self.dtype)}"
            )

    @classmethod
    def choose(
        cls,
        bits: int | None,
        group_size: int | None,
        mode: str | None,
        dtype: str,
        *,
        prefers_16_bits: bool,
    ) -> "WeightFormat":
        """Return a format. None stands for the default: affine, 4 bits, groups of 64.

        Modes of floating point have bits and groups of their own. The dtype "auto" depends on the
        bits. With quantized weights it is bfloat16 if everything measured `prefers_16_bits`,
        otherwise float32. Plain floats of 16 bits are bfloat16.
        """
        mode = mode or AFFINE
        if not is_quantization_mode(mode):
            raise UsageError(f"--mode: expected one of {', '.join(QUANTIZATION_MODES)}, got {mode}")
        usual_bits, usual_group = FLOAT_MODES.get(mode, (4, 64))
        bits = usual_bits if bits is None else bits
        chosen = DTYPES[dtype]
        if chosen is None:
            wide = bits == 32 or (bits != 16 and not prefers_16_bits)
            chosen = mx.float32 if wide else mx.bfloat16
        group_size = usual_group if group_size is None else group_size
        return cls(bits, group_size, mode, chosen)

    @property
    def is_quantized(self) -> bool:
        """True if matrices are quantized."""
        return self.bits not in PLAIN_BITS

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a tensor. In a quantized format, only matrices are quantized.

        Raise `UsageError` if the rows of a matrix are not a whole number of groups.
        """
        numbers = math.prod(shape)
        if not self.is_quantized or len(shape) < 2:
            return numbers * self.dtype.size
        if shape[-1] % self.group_size:
            raise UsageError(
                f"--group-size: expected a divisor of {shape[-1]}, a matrix's columns, got "
                f"{self.group_size}"
            )
        scale = 2 * self.dtype.size if self.mode == AFFINE else 1
        return numbers * self.bits // 8 + numbers // self.group_size * scale

    def __str__(self) -> str:
        """Return the format for people."""
        if not self.is_quantized:
            return dtype_name(self.dtype)
        return f"{self.bits}-bit {self.mode}, group {self.group_size}, {dtype_name(self.dtype)}"


def dtype_name(dtype: mx.Dtype) -> str:
    """Return the name of a dtype without its package."""
    return str(dtype).removeprefix("mlx.core.")
