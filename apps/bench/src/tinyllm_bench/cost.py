"""What a computation cannot do without: bytes to move and operations to compute."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """The least that must be done.

    Attributes:
        bytes: read and written, each operand once, packed ones as they are packed.
        flops: multiplications and additions of the matrix products, where there are any; the
            few of a norm or a softmax are not counted.
    """

    bytes: int
    flops: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        """Both computations, one after the other."""
        return Cost(self.bytes + other.bytes, self.flops + other.flops)

    def gbps(self, seconds: float) -> float:
        """Billions of bytes a second."""
        return self.bytes / seconds / 1e9

    def tflops(self, seconds: float) -> float:
        """Trillions of operations a second."""
        return self.flops / seconds / 1e12


def product_flops(rows: int, inner: int, columns: int) -> int:
    """Of a matrix product: one multiplication and one addition for each term."""
    return 2 * rows * inner * columns


def attention_flops(heads: int, head_dim: int, pairs: int) -> int:
    """Of q k^T and of the product with v, over the pairs of query and key that see each other."""
    return 4 * heads * head_dim * pairs


def causal_pairs(length: int, keys: int) -> int:
    """Pairs that a causal mask leaves: the last of `length` queries sees all `keys`."""
    return sum(range(keys - length + 1, keys + 1))
