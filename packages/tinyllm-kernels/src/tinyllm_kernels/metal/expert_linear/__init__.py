"""Linear layers of a mixture of experts: each row of x has the weights of its expert.

Both kernels read the expert's index on the GPU, so that the host does not wait for the router. They
are the two kernels of `linear`, and the phase chooses one of them:

- Decode: `matrix_vector` for one token, with the rows as a second axis of the grid. The experts of
  a token differ, so its rows never share weights.
- Prefill: `matrix_product`. A threadgroup has 32 rows, and computes a product for each run of
  rows with the same expert. Sorted rows have few runs. A row has the same bits in any run, and
  therefore in any chunk of its prompt. A short chunk has a run for each row, which wastes most of
  the tile's arithmetic.

A call without a phase treats a matrix `N I` of up to 64 rows as decode steps. MLX computes dense
weights and weights in floating-point formats.
"""

import mlx.core as mx
from jaxtyping import Float, Integer
from tinyllm_ops import MLX, Phase, QuantizedTensor, Weight, phase_of
from tinyllm_ops.checks import check_expert_linear
from tinyllm_ops.quantization.tensor import AFFINE

from tinyllm_kernels.metal.kernel import SIMD, Kernel
from tinyllm_kernels.metal.linear.matrix_product import DECLARE_TILES, SIDE, SIMDGROUPS
from tinyllm_kernels.metal.linear.matrix_product import FILES as PREFILL_FILES
from tinyllm_kernels.metal.linear.matrix_vector import DECLARE_SUMS, ROWS, simdgroup_count
from tinyllm_kernels.metal.linear.matrix_vector import FILES as DECODE_FILES

MAX_ROWS = 64  # rows of a decode step, for calls without a phase

_INPUTS = ("x", "packed", "scales", "biases", "experts", "rows", "outputs", "inputs", "group_size")
_DECODE = Kernel(
    "expert_linear_decode",
    DECODE_FILES,
    _INPUTS,
    ("y",),
    DECLARE_SUMS
    + """
    const ulong n = threadgroup_position_in_grid.y, row = ulong(experts[n]) * outputs;
    const ulong group = row * (inputs / group_size);
    matrix_vector<T, BITS, TOKENS, ROWS>(
        x + n * inputs, packed + row * (inputs / 32 * BITS), scales + group, biases + group,
        NoAddend(), y + n * outputs, 1u, uint(outputs), uint(inputs), uint(group_size),
        threadgroup_position_in_grid.x * ROWS, thread_index_in_simdgroup,
        simdgroup_index_in_threadgroup, simdgroups_per_threadgroup, partial);
    """,
)
_PREFILL = Kernel(
    "expert_linear_prefill",
    (*PREFILL_FILES, "expert_linear/prefill.metal"),
    _INPUTS,
    ("y",),
    DECLARE_TILES
    + """
    expert_linear_prefill<T, BITS>(
        x, packed, scales, biases, experts, y, uint(rows), uint(outputs), uint(inputs),
        uint(group_size), group.y * 32, group.x * 32, thread_index_in_threadgroup,
        simdgroup_index_in_threadgroup, x_tile, w_tile, y_tile);
    """,
)


def expert_linear(
    x: Float[mx.array, "*batch I"],
    w: Weight,
    experts: Integer[mx.array, "*batch"],
    *,
    phase: Phase | None = None,
) -> Float[mx.array, "*batch O"]:
    """Compute y[n] = w[experts[n]] x[n]; see `tinyllm_ops.expert_linear`."""
    check_expert_linear(x, w, experts)
    is_affine = isinstance(w, QuantizedTensor) and w.mode == AFFINE
    if not is_affine or x.size == 0 or 0 in w.shape:
        return MLX.expert_linear(x, w, experts, phase=phase)
    assert isinstance(w, QuantizedTensor)
    outputs, inputs = w.shape[1:]
    rows = experts.size
    values = (x, *w.arrays, experts.flatten().astype(mx.int32))
    template: list[tuple[str, mx.Dtype | int | bool]] = [("T", x.dtype), ("BITS", w.bits)]
    if (phase or phase_of(x, MAX_ROWS)) == "decode":
        kernel, threads = _DECODE, SIMD * simdgroup_count(inputs)
        threadgroups = (-(-outputs // ROWS), rows, 1)
        template += [("TOKENS", 1), ("ROWS", ROWS)]
    else:
        kernel, threads = _PREFILL, SIMD * SIMDGROUPS
        threadgroups = (-(-outputs // SIDE), -(-rows // SIDE), 1)
    (y,) = kernel(
        (*values, rows, outputs, inputs, w.group_size),
        [((*experts.shape, outputs), x.dtype)],
        threadgroups_per_grid=threadgroups,
        threads_per_threadgroup=(threads, 1, 1),
        template=template,
    )
    return y
