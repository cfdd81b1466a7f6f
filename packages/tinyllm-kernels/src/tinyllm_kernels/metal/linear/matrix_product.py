"""Matrix product of many tokens with a quantized matrix, for prompts.

With 32 tokens each unpacked weight is used 32 times, so arithmetic limits the speed. The kernel
multiplies simdgroup matrices. A threadgroup computes a tile of y, 32 tokens by 32 outputs. Each of
its four simdgroups has four 8x8 sums of the split, and four totals. A step of 32 columns reads
1,024 numbers of x, unpacks 1,024 weights (eight for each of the 128 threads) and multiplies 64
pairs of matrices.

Threadgroup memory holds two tiles of 32 rows of 40 numbers (36 in float32), padded so that rows
begin in different banks, and 4 KiB of sums: 9 KiB in 16 bits, 13 KiB in float32, of the 32 KiB that
a threadgroup may have. A thread needs 16 registers for sums and eight for factors, so registers do
not limit occupancy.

A prompt of 32 tokens and a matrix of 1,024 rows are 32 tiles: too few for a GPU of eight cores or
more, which runs several threadgroups a core. The columns are therefore summed in up to four splits
of 256 or more (split K). Below 128 tiles each split has a threadgroup, and a second kernel adds the
sums of the splits, which are stored in float32. A sum costs 4 bytes written and 4 read, which is
little compared with the weights of 256 columns. From 128 tiles on, one threadgroup adds the splits
of a tile itself, in the same order. The bits of a token therefore do not depend on the number of
tokens.
"""

import functools

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import QuantizedTensor

from tinyllm_kernels.metal.kernel import SIMD, Kernel
from tinyllm_kernels.metal.linear.addend import Addend, AddendFormat

SIDE = 32  # tokens of a tile, outputs of a tile, and columns of a unit
SIMDGROUPS = 4
ENOUGH_GROUPS = 128  # threadgroups that fill a GPU
MIN_SPLIT_UNITS = 8  # smallest number of units in a split of the columns
MAX_SPLITS = 4
SUM_THREADS = 256

FILES = ("codes.metal", "linear/addend.metal", "linear/matrix_product.metal")
DECLARE_TILES = """
    threadgroup T x_tile[32 * Tiles<T>::STRIDE], w_tile[32 * Tiles<T>::STRIDE];
    threadgroup float y_tile[32 * 32];
    const uint3 group = threadgroup_position_in_grid;
    """


@functools.cache
def _matrix_product(addend: AddendFormat) -> Kernel:
    """Make the kernel for one format of the addend."""
    declare_range = """
    const uint begin = group.z * units, first_token = 0;
    """
    call = """
    matrix_product<T, OUT, BITS>(
        x, packed, scales, biases, addend, y + ulong(group.z) * tokens * outputs, uint(tokens),
        uint(outputs), uint(inputs), uint(group_size), begin,
        metal::min(begin + units, uint(inputs) / 32), uint(split_units), group.y * 32, group.x * 32,
        thread_index_in_threadgroup, simdgroup_index_in_threadgroup, x_tile, w_tile, y_tile);
    """
    sizes = ("tokens", "outputs", "inputs", "group_size", "split_units", "units")
    return Kernel(
        f"matrix_product{addend.suffix}",
        FILES,
        ("x", "packed", "scales", "biases", *sizes, *addend.inputs),
        ("y",),
        DECLARE_TILES + declare_range + addend.declaration + call,
    )


@functools.cache
def _sum_of_splits(addend: AddendFormat) -> Kernel:
    """Make the kernel that adds the sums of the splits, for one format of the addend."""
    declare_first_token = """
    const uint first_token = 0;
    """
    call = """
    sum_of_splits<T>(partial, addend, y, uint(count), uint(size), uint(outputs),
                    thread_position_in_grid.x);
    """
    return Kernel(
        f"sum_of_splits{addend.suffix}",
        ("codes.metal", "linear/addend.metal", "linear/sum_of_splits.metal"),
        ("partial", "count", "size", "outputs", *addend.inputs),
        ("y",),
        declare_first_token + addend.declaration + call,
    )


def split_units(inputs: int) -> int:
    """Return the number of units of 32 columns in a split, for any number of tokens."""
    units = inputs // SIDE
    return -(-units // max(1, min(MAX_SPLITS, units // MIN_SPLIT_UNITS)))


def group_units(tokens: int, outputs: int, inputs: int) -> int:
    """Return the number of units that a threadgroup sums.

    These are the units of one split if the tiles do not fill a GPU, and otherwise all units.
    """
    tiles = -(-tokens // SIDE) * -(-outputs // SIDE)
    return split_units(inputs) if tiles < ENOUGH_GROUPS else inputs // SIDE


def matrix_product(
    x: Float[mx.array, "M I"], w: QuantizedTensor, addend: Addend
) -> Float[mx.array, "M O"]:
    """Return x w^T + addend, with an affine w of shape `O I`."""
    tokens, inputs = x.shape
    outputs = w.shape[0]
    units = group_units(tokens, outputs, inputs)
    splits = -(-inputs // (SIDE * units))
    sizes = (tokens, outputs, inputs, w.group_size, split_units(inputs), units)
    # With several splits, the second kernel rounds and adds the addend.
    dtype = x.dtype if splits == 1 else mx.float32
    first_addend = addend if splits == 1 else Addend()
    (y,) = _matrix_product(first_addend.format)(
        (x, *w.arrays, *sizes, *first_addend.inputs),
        [((splits, tokens, outputs), dtype)],
        threadgroups_per_grid=(-(-outputs // SIDE), -(-tokens // SIDE), splits),
        threads_per_threadgroup=(SIMD * SIMDGROUPS, 1, 1),
        template=[("T", x.dtype), ("OUT", dtype), ("BITS", w.bits)],
    )
    if splits > 1:
        size = tokens * outputs
        (y,) = _sum_of_splits(addend.format)(
            (y, splits, size, outputs, *addend.inputs),
            [((tokens, outputs), x.dtype)],
            threadgroups_per_grid=(-(-size // SUM_THREADS), 1, 1),
            threads_per_threadgroup=(SUM_THREADS, 1, 1),
            template=[("T", x.dtype)],
        )
    return y.reshape(tokens, outputs)
