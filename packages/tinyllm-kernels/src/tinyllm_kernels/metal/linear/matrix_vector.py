"""Product of a few tokens with a quantized matrix, for decode steps.

Each weight is read once, and reading takes the time: one token of a 4 GB model moves 4 GB. The
kernel is therefore built around its reads:

- A unit is 32 consecutive weights of a row: BITS whole words for any width from 2 to 8 bits.
  Neighboring lanes read neighboring units, so a simdgroup reads 128 BITS bytes in one access.
- An unpacked weight is used for up to eight tokens. A number of x is used for four rows of w.
- A threadgroup has one simdgroup for each 1,024 columns, up to eight. The simdgroups split the
  columns of the same four rows (split K inside a threadgroup), so that a product with few outputs
  still fills the GPU.

Registers of a thread at 4 bits: 32 unpacked weights, 16 words, eight scales and biases, and one sum
for each row and token. Together 60 numbers for one token, 88 for eight. Threadgroup memory holds
the sums of each simdgroup, at most 1 KiB.

The threads that write the results also read the bias or residual: O more numbers a token. A kernel
of its own would read twice as many, write them, and cost a launch.
"""

from __future__ import annotations

import functools

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import QuantizedTensor

from tinyllm_kernels.metal.kernel import SIMD, Kernel
from tinyllm_kernels.metal.linear.addend import Addend, AddendFormat

MAX_TOKENS = 8  # tokens of a threadgroup
ROWS = 4  # rows of w of a threadgroup
MAX_SIMDGROUPS = 8

FILES = ("codes.metal", "linear/addend.metal", "linear/matrix_vector.metal")
DECLARE = f"threadgroup float partial[{MAX_SIMDGROUPS} * TOKENS * ROWS];"


@functools.cache
def _matrix_vector(added: AddendFormat) -> Kernel:
    """Make the kernel for one kind of addend."""
    first = """
    const uint first_token = threadgroup_position_in_grid.y * TOKENS;
    """
    multiply = """
    matrix_vector<T, BITS, TOKENS, ROWS>(
        x + ulong(first_token) * inputs, packed, scales, biases, added,
        y + ulong(first_token) * outputs, uint(tokens) - first_token, uint(outputs), uint(inputs),
        uint(group_size), threadgroup_position_in_grid.x * ROWS, thread_index_in_simdgroup,
        simdgroup_index_in_threadgroup, simdgroups_per_threadgroup, partial);
    """
    sizes = ("tokens", "outputs", "inputs", "group_size")
    return Kernel(
        f"matrix_vector{added.name}",
        FILES,
        ("x", "packed", "scales", "biases", *sizes, *added.inputs),
        ("y",),
        DECLARE + first + added.body + multiply,
    )


def simdgroup_count(inputs: int) -> int:
    """Simdgroups of a threadgroup: one for each 1,024 columns, at most eight."""
    return min(-(-inputs // (SIMD * SIMD)), MAX_SIMDGROUPS)


def matrix_vector(
    x: Float[mx.array, "M I"], w: QuantizedTensor, addend: Addend
) -> Float[mx.array, "M O"]:
    """x w^T + addend for an affine w of shape `O I`. Eight tokens share a threadgroup."""
    tokens, inputs = x.shape
    outputs = w.shape[0]
    unrolled = next(count for count in (1, 2, 4, MAX_TOKENS) if count >= min(tokens, MAX_TOKENS))
    (y,) = _matrix_vector(addend.format)(
        (x, *w.arrays, tokens, outputs, inputs, w.group_size, *addend.inputs),
        [((tokens, outputs), x.dtype)],
        groups=(-(-outputs // ROWS), -(-tokens // unrolled), 1),
        group=(SIMD * simdgroup_count(inputs), 1, 1),
        template=[("T", x.dtype), ("BITS", w.bits), ("TOKENS", unrolled), ("ROWS", ROWS)],
    )
    return y
