"""The product of a few tokens with a quantized matrix: decoding.

Every weight is read once, BITS/8 bytes and a group's scale and bias, and that is what the time goes
to: a token of a model of 4 GB moves 4 GB. So the kernel is about reading:

- neighboring lanes read neighboring units of 32 numbers, each BITS words: a simdgroup reads
  128 BITS bytes of a row in one sweep, for any width from 2 to 8 bits;
- what is unpacked is used for eight tokens, and what is read of x for four rows of w;
- a threadgroup has a simdgroup for each 1,024 columns, up to eight: a product with few outputs
  still fills the machine, since its columns are shared out (split K without a second kernel).

Registers of a thread at 4 bits: 32 unpacked weights, 16 words, eight scales and biases, and a sum
for each row and token: 60 numbers for one token, 88 for eight. Threadgroup memory: the sums of each
simdgroup, 1 KiB at most.

What is added, a bias or a residual, is read by the threads that write the results: E numbers more
to read, where a kernel of its own would read twice as many, write them, and be launched.
"""

from __future__ import annotations

import functools

import mlx.core as mx
from tinyllm_ops import QuantizedTensor

from tinyllm_kernels.metal.kernel import SIMD, Kernel
from tinyllm_kernels.metal.linear.addend import Addend, AddendFormat

MAX_TOKENS = 8  # of a threadgroup
ROWS = 4  # of w for a threadgroup
MAX_SIMDGROUPS = 8

FILES = ("codes.metal", "linear/addend.metal", "linear/matrix_vector.metal")
DECLARE = f"threadgroup float partial[{MAX_SIMDGROUPS} * TOKENS * ROWS];"


@functools.cache
def _matrix_vector(adds: AddendFormat) -> Kernel:
    """A kernel for each kind of addend."""
    place = """
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
        f"matrix_vector{adds.name}",
        FILES,
        ("x", "packed", "scales", "biases", *sizes, *adds.inputs),
        ("y",),
        DECLARE + place + adds.body + multiply,
    )


def is_decoded(x: mx.array, few: int) -> bool:
    """Whether rows are decoded tokens: `... 1 I`, or a few of which nothing is known.

    Args:
        x: the rows.
        few: how many rows of a matrix are few.
    """
    return x.shape[-2] == 1 if x.ndim > 2 else x.size <= few * x.shape[-1]


def simdgroups(inputs: int) -> int:
    """How many share out the columns: one for each sweep of a simdgroup, up to eight."""
    return min(-(-inputs // (SIMD * SIMD)), MAX_SIMDGROUPS)


def matrix_vector(x: mx.array, w: QuantizedTensor, addend: Addend) -> mx.array:
    """x w^T + addend for x `M I` and an affine w `O I`."""
    tokens, inputs = x.shape
    outputs = w.shape[0]
    unrolled = next(count for count in (1, 2, 4, MAX_TOKENS) if count >= min(tokens, MAX_TOKENS))
    (y,) = _matrix_vector(addend.format)(
        (x, *w.arrays, tokens, outputs, inputs, w.group_size, *addend.inputs),
        [((tokens, outputs), x.dtype)],
        groups=(-(-outputs // ROWS), -(-tokens // unrolled), 1),
        group=(SIMD * simdgroups(inputs), 1, 1),
        template=[("T", x.dtype), ("BITS", w.bits), ("TOKENS", unrolled), ("ROWS", ROWS)],
    )
    return y
