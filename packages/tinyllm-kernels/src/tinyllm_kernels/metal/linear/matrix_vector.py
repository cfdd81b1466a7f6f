"""Matrix-vector product of one or a few tokens with a quantized matrix, for decode steps.

The kernel reads each weight once, and reading limits the speed: a token of a 4 GB model reads 4 GB.
The design therefore begins with the reads:

- A lane reads a unit of 32 consecutive weights of a row, which is BITS whole words for any width
  from 2 to 8 bits. Neighboring lanes read neighboring units, so a simdgroup reads 128 BITS bytes in
  one access.
- Each unpacked weight is multiplied with up to eight tokens, and each number of x with four rows.
- A threadgroup computes four rows. It has one simdgroup for each 1,024 columns, up to eight, and
  the simdgroups split the columns (split K inside a threadgroup). A product with few outputs
  therefore still fills the GPU.

At 4 bits a thread needs registers for 32 unpacked weights, 16 words, four scales, four biases, and
one sum for each row and token: 60 numbers for one token, 88 for eight. Threadgroup memory holds one
sum for each simdgroup, row and token, at most 1 KiB.

The threads that write y also add the bias or residual, which reads one more number for each output.
A separate kernel would read two numbers, write one, and cost a launch.
"""

import functools

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import QuantizedTensor

from tinyllm_kernels.metal.kernel import SIMD, Kernel
from tinyllm_kernels.metal.linear.addend import Addend, AddendFormat

MAX_TOKENS = 8  # tokens of a threadgroup
ROWS = 4  # rows of w of a threadgroup
COLUMNS = SIMD * SIMD  # columns of a simdgroup: a unit of 32 for each of 32 lanes
MAX_SIMDGROUPS = 8

FILES = ("codes.metal", "linear/addend.metal", "linear/matrix_vector.metal")
DECLARE_SUMS = f"threadgroup float partial[{MAX_SIMDGROUPS} * TOKENS * ROWS];"


@functools.cache
def _matrix_vector(addend: AddendFormat) -> Kernel:
    """Make the kernel for one format of the addend."""
    declare_first_token = """
    const uint first_token = threadgroup_position_in_grid.y * TOKENS;
    """
    call = """
    matrix_vector<T, BITS, TOKENS, ROWS>(
        x + ulong(first_token) * inputs, packed, scales, biases, addend,
        y + ulong(first_token) * outputs, uint(tokens) - first_token, uint(outputs), uint(inputs),
        uint(group_size), threadgroup_position_in_grid.x * ROWS, thread_index_in_simdgroup,
        simdgroup_index_in_threadgroup, simdgroups_per_threadgroup, partial);
    """
    sizes = ("tokens", "outputs", "inputs", "group_size")
    return Kernel(
        f"matrix_vector{addend.suffix}",
        FILES,
        ("x", "packed", "scales", "biases", *sizes, *addend.inputs),
        ("y",),
        DECLARE_SUMS + declare_first_token + addend.declaration + call,
    )


def simdgroup_count(inputs: int) -> int:
    """Return the number of simdgroups in a threadgroup: one per 1,024 columns, at most eight."""
    return min(-(-inputs // COLUMNS), MAX_SIMDGROUPS)


def matrix_vector(
    x: Float[mx.array, "M I"], w: QuantizedTensor, addend: Addend
) -> Float[mx.array, "M O"]:
    """Return x w^T + addend, with an affine w of shape `O I`.

    A threadgroup computes 1, 2, 4 or 8 tokens. More than eight tokens need several threadgroups.
    """
    tokens, inputs = x.shape
    outputs = w.shape[0]
    group_tokens = next(
        count for count in (1, 2, 4, MAX_TOKENS) if count >= min(tokens, MAX_TOKENS)
    )
    (y,) = _matrix_vector(addend.format)(
        (x, *w.arrays, tokens, outputs, inputs, w.group_size, *addend.inputs),
        [((tokens, outputs), x.dtype)],
        threadgroups_per_grid=(-(-outputs // ROWS), -(-tokens // group_tokens), 1),
        threads_per_threadgroup=(SIMD * simdgroup_count(inputs), 1, 1),
        template=[("T", x.dtype), ("BITS", w.bits), ("TOKENS", group_tokens), ("ROWS", ROWS)],
    )
    return y
