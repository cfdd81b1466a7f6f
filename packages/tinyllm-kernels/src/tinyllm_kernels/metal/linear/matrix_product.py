"""The product of many tokens with a quantized matrix: prompts.

With 32 tokens a weight is used 32 times, and arithmetic is what the time goes to: it belongs on the
matrices of a simdgroup. A tile of y is 32 by 32, four simdgroups with four 8x8 sums each. A step of
32 columns reads 1,024 numbers of x and unpacks 1,024 weights, eight for each of the 128 threads,
and multiplies 64 pairs of matrices: an unpacked weight is used 32 times, not once.

Threadgroup memory: two tiles of 32 rows of 40 numbers (36 in float32), padded so that rows begin in
different banks, and 4 KiB for the sums: 9 KiB in 16 bits, 13 KiB in float32, of 32. Registers of a
thread: sixteen numbers of sums and eight of factors, so that these bound nothing.

A prompt of 32 tokens and a matrix of 1,024 rows are 32 tiles: too few for a GPU of eight cores and
more, which takes several groups to a core. Below 128 tiles the columns, which are summed in up to
four parts of 256 and more, have a group for each part; a second kernel adds what these leave in
float32. Its traffic is 4 bytes in and out for each part of a sum, small beside that of the weights
as long as parts are that wide. With 128 tiles and more a group adds its parts by itself, in the
same order: how many tokens there are changes no bit.
"""

from __future__ import annotations

import functools

import mlx.core as mx
from tinyllm_ops import QuantizedTensor

from tinyllm_kernels.metal.kernel import SIMD, Kernel
from tinyllm_kernels.metal.linear.addend import Addend, AddendFormat

SIDE = 32  # of a tile, and the columns of a step
SIMDGROUPS = 4
ENOUGH_GROUPS = 128
LEAST_UNITS = 8  # of 32 columns in a part
MAX_PARTS = 4
THREADS = 256  # of a group that adds parts


@functools.cache
def _matrix_product(adds: AddendFormat) -> Kernel:
    """A kernel for each kind of addend."""
    place = """
    threadgroup T x_tile[32 * Tiles<T>::STRIDE], w_tile[32 * Tiles<T>::STRIDE];
    threadgroup float y_tile[32 * 32];
    const uint3 group = threadgroup_position_in_grid;
    const uint begin = group.z * units, first_token = 0;
    """
    multiply = """
    matrix_product<T, OUT, BITS>(
        x, packed, scales, biases, added, y + ulong(group.z) * tokens * outputs, uint(tokens),
        uint(outputs), uint(inputs), uint(group_size), begin,
        metal::min(begin + units, uint(inputs) / 32), uint(part_units), group.y * 32, group.x * 32,
        thread_index_in_threadgroup, simdgroup_index_in_threadgroup, x_tile, w_tile, y_tile);
    """
    sizes = ("tokens", "outputs", "inputs", "group_size", "part_units", "units")
    return Kernel(
        f"matrix_product{adds.name}",
        ("codes.metal", "linear/addend.metal", "linear/matrix_product.metal"),
        ("x", "packed", "scales", "biases", *sizes, *adds.inputs),
        ("y",),
        place + adds.body + multiply,
    )


@functools.cache
def _sum_of_parts(adds: AddendFormat) -> Kernel:
    """A kernel for each kind of addend."""
    place = """
    const uint first_token = 0;
    """
    add = """
    sum_of_parts<T>(parts, added, y, uint(count), uint(size), uint(outputs),
                    thread_position_in_grid.x);
    """
    return Kernel(
        f"sum_of_parts{adds.name}",
        ("codes.metal", "linear/addend.metal", "linear/sum_of_parts.metal"),
        ("parts", "count", "size", "outputs", *adds.inputs),
        ("y",),
        place + adds.body + add,
    )


def part_units(inputs: int) -> int:
    """Units of 32 columns in a part of a sum, whatever the number of tokens."""
    units = inputs // SIDE
    return -(-units // max(1, min(MAX_PARTS, units // LEAST_UNITS)))


def group_units(tokens: int, outputs: int, inputs: int) -> int:
    """Units that a group sums: those of a part where the tiles do not fill a GPU, or else all."""
    tiles = -(-tokens // SIDE) * -(-outputs // SIDE)
    return part_units(inputs) if tiles < ENOUGH_GROUPS else inputs // SIDE


def matrix_product(x: mx.array, w: QuantizedTensor, addend: Addend) -> mx.array:
    """x w^T + addend for x `M I` and an affine w `O I`."""
    tokens, inputs = x.shape
    outputs = w.shape[0]
    units = group_units(tokens, outputs, inputs)
    parts = -(-inputs // (SIDE * units))
    sizes = (tokens, outputs, inputs, w.group_size, part_units(inputs), units)
    out = x.dtype if parts == 1 else mx.float32
    whole = addend if parts == 1 else Addend()
    (y,) = _matrix_product(whole.format)(
        (x, *w.arrays, *sizes, *whole.inputs),
        [((parts, tokens, outputs), out)],
        groups=(-(-outputs // SIDE), -(-tokens // SIDE), parts),
        group=(SIMD * SIMDGROUPS, 1, 1),
        template=[("T", x.dtype), ("OUT", out), ("BITS", w.bits)],
    )
    if parts > 1:
        size = tokens * outputs
        (y,) = _sum_of_parts(addend.format)(
            (y, parts, size, outputs, *addend.inputs),
            [((tokens, outputs), x.dtype)],
            groups=(-(-size // THREADS), 1, 1),
            group=(THREADS, 1, 1),
            template=[("T", x.dtype)],
        )
    return y.reshape(tokens, outputs)
