"""Each row times the matrix of its own expert.

The kernel of `linear` for one token, with the row as a third axis of the grid, finds the matrix by
the expert's number: the host never learns which experts were chosen. That is what decoding does,
whose rows are `... 1 I`. In a prompt many rows share an expert, and reading its matrix for each of
them would be waste: it goes to MLX, as do dense weights and floating-point modes. Of a matrix `N I`
up to 64 rows count as decoded.
"""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float, Integer
from tinyllm_ops import MLX, QuantizedTensor, Weight
from tinyllm_ops.contract import check_expert_linear
from tinyllm_ops.quantized_tensor import AFFINE

from tinyllm_kernels.metal.kernel import SIMD, Kernel
from tinyllm_kernels.metal.linear.matrix_vector import (
    DECLARE,
    FILES,
    ROWS,
    is_decoded,
    simdgroups,
)

MAX_ROWS = 64

_EXPERT_LINEAR = Kernel(
    "expert_linear",
    FILES,
    ("x", "packed", "scales", "biases", "experts", "outputs", "inputs", "group_size"),
    ("y",),
    DECLARE
    + """
    const ulong n = threadgroup_position_in_grid.y, row = ulong(experts[n]) * outputs;
    const ulong group = row * (inputs / group_size);
    matrix_vector<T, BITS, TOKENS, ROWS>(
        x + n * inputs, packed + row * (inputs / 32 * BITS), scales + group, biases + group,
        Nothing(), y + n * outputs, 1u, uint(outputs), uint(inputs), uint(group_size),
        threadgroup_position_in_grid.x * ROWS, thread_index_in_simdgroup,
        simdgroup_index_in_threadgroup, simdgroups_per_threadgroup, partial);
    """,
)


def expert_linear(
    x: Float[mx.array, "*batch I"], w: Weight, experts: Integer[mx.array, "*batch"]
) -> Float[mx.array, "*batch O"]:
    """y[n] = w[experts[n]] x[n]; see `tinyllm_ops.expert_linear`."""
    check_expert_linear(x, w, experts)
    if not isinstance(w, QuantizedTensor) or w.mode != AFFINE or not is_decoded(x, MAX_ROWS):
        return MLX.expert_linear(x, w, experts)
    if x.size == 0 or w.packed.size == 0:
        return MLX.expert_linear(x, w, experts)
    outputs, inputs = w.shape[1:]
    chosen = experts.flatten().astype(mx.int32)
    assert w.biases is not None  # the affine mode has them
    (y,) = _EXPERT_LINEAR(
        (x, w.packed, w.scales, w.biases, chosen, outputs, inputs, w.group_size),
        [((*experts.shape, outputs), x.dtype)],
        groups=(-(-outputs // ROWS), experts.size, 1),
        group=(SIMD * simdgroups(inputs), 1, 1),
        template=[("T", x.dtype), ("BITS", w.bits), ("TOKENS", 1), ("ROWS", ROWS)],
    )
    return y
