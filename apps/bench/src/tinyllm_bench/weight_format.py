"""How the matrices of a random model are stored, and in which dtype it computes."""

from dataclasses import dataclass

import mlx.core as mx
from tinyllm_ops.quantization.tensor import AFFINE, check_format

from tinyllm_bench.errors import UsageError

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


@dataclass(frozen=True)
class WeightFormat:
    """Bits a number, and how they are meant.

    Attributes:
        bits: 16 or 32 for plain floats, otherwise the width of a code.
        group_size: numbers that share a scale.
        mode: of `QuantizedTensor`.
        dtype: of activations, and of everything that is not packed.

    Raises:
        UsageError: if there is no such format.
    """

    bits: int
    group_size: int
    mode: str
    dtype: mx.Dtype

    def __post_init__(self) -> None:
        """Refuse what MLX does not define, and floats of another width than asked for."""
        if self.packed:
            try:
                check_format(self.group_size, self.bits, self.mode)
            except ValueError as error:
                raise UsageError(f"--bits, --group-size, --mode: {error}") from error
        elif self.dtype.size * 8 != self.bits:
            raise UsageError(
                f"--dtype: expected one of {self.bits} bits beside --bits {self.bits}, "
                f"got {_name(self.dtype)}"
            )

    @classmethod
    def choose(
        cls, bits: int, group_size: int, mode: str, dtype: str, *, gpu: bool
    ) -> "WeightFormat":
        """Make the automatic choice of the dtype.

        Beside packed weights it is float32 on a CPU, where MLX's 16-bit arithmetic is slow, and
        bfloat16 on a GPU; floats of 16 bits are bfloat16.
        """
        chosen = DTYPES.get(dtype)
        if chosen is None:
            wide = bits == 32 or (bits != 16 and not gpu)
            chosen = mx.float32 if wide else mx.bfloat16
        return cls(bits, group_size, mode, chosen)

    @property
    def packed(self) -> bool:
        """Whether matrices are quantized."""
        return self.bits not in (16, 32)

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor: a matrix is packed where the format packs, a vector never.

        Raises:
            UsageError: if its rows are no whole number of groups.
        """
        numbers = 1
        for length in shape:
            numbers *= length
        if not self.packed or len(shape) < 2:
            return numbers * self.dtype.size
        if shape[-1] % self.group_size:
            raise UsageError(
                f"--group-size: expected a divisor of {shape[-1]}, a matrix's columns, got "
                f"{self.group_size}"
            )
        groups = numbers // self.group_size
        scale = 2 * self.dtype.size if self.mode == AFFINE else 1
        return numbers * self.bits // 8 + groups * scale

    def __str__(self) -> str:
        """The format as a reader knows it."""
        if not self.packed:
            return _name(self.dtype)
        return f"{self.bits}-bit {self.mode}, group {self.group_size}, {_name(self.dtype)}"


def _name(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")
