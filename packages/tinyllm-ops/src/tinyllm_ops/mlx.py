"""The OpSet of MLX's own fast operations: the baseline, and the implementation for CUDA.

The functions correct MLX's operations where MLX breaks the contract of `OpSet`. A fully masked row
gives zeros, an empty input gives an empty output, and quantized products accumulate in float32 on
the CPU.

`gated_delta` is the reference. MLX documents `mx.fast.gated_delta_update` as a chunked algorithm,
and the bits of a chunked algorithm depend on the chunks. On a CPU it takes 1.4 times as long.
"""

from functools import partial

import mlx.core as mx
from jaxtyping import Float, Integer

from tinyllm_ops.checks import (
    check_attention,
    check_embedding,
    check_expert_linear,
    check_linear,
    check_paged_attention,
    check_quantize,
    check_rms_norm,
    check_rope,
    check_softmax,
    check_swiglu,
    position_array,
    slice_start,
)
from tinyllm_ops.opset import Mask, OpSet, Positions
from tinyllm_ops.page_table import PageTable
from tinyllm_ops.phase import Phase
from tinyllm_ops.quantization.tensor import AFFINE, QuantizationMode, QuantizedTensor, Weight
from tinyllm_ops.recurrent_checks import check_gated_rms_norm
from tinyllm_ops.reference.attention import additive_mask, causal_mask
from tinyllm_ops.reference.delta_net import causal_conv, gated_delta
from tinyllm_ops.reference.linear import expert_linear as reference_expert_linear
from tinyllm_ops.reference.paged_attention import attend_by_sequence
from tinyllm_ops.reference.quantize import quantize as reference_quantize
from tinyllm_ops.reference.rowwise import argmax, embedding_dtype, log_probability, top_k
from tinyllm_ops.rotary_frequencies import Yarn, rotary_frequencies

# From this number of rows on, MLX's GPU kernels are faster on rows sorted by expert (the threshold
# of mlx-lm). The kernels do not check the order, so `expert_linear` sorts the rows itself.
_MANY_ROWS = 64


def linear(
    x: Float[mx.array, "*batch I"],
    w: Weight,
    bias: Float[mx.array, "O"] | None = None,
    residual: Float[mx.array, "*batch O"] | None = None,
    *,
    phase: Phase | None = None,
) -> Float[mx.array, "*batch O"]:
    """x w^T + bias + residual. A quantized w stays packed."""
    check_linear(x, w, bias, residual)
    if not isinstance(w, QuantizedTensor):
        y = x @ w.T
    elif x.size == 0 or not w.shape[0]:  # MLX's quantized product divides by the number of rows
        y = mx.zeros((*x.shape[:-1], w.shape[0]), x.dtype)
    else:
        y = _quantized_matmul(x, w, transpose=True)
    y = y if bias is None else y + bias
    return y if residual is None else y + residual


def expert_linear(
    x: Float[mx.array, "*batch I"],
    w: Weight,
    experts: Integer[mx.array, "*batch"],
    *,
    phase: Phase | None = None,
) -> Float[mx.array, "*batch O"]:
    """Multiply through `mx.gather_mm` or `mx.gather_qmm`, which look up each row's matrix."""
    check_expert_linear(x, w, experts)
    if x.size == 0 or not w.shape[1]:
        return mx.zeros((*x.shape[:-1], w.shape[1]), x.dtype)
    if isinstance(w, mx.array) and _on_cpu() and x.dtype != mx.float32:
        return reference_expert_linear(x, w, experts)  # on the CPU, `mx.gather_mm` needs float32
    rows = x.reshape(experts.size, 1, x.shape[-1])  # N 1 I
    chosen = experts.flatten()
    many = experts.size >= _MANY_ROWS
    if many:
        order = mx.argsort(chosen)
        rows, chosen = rows[order], chosen[order]
    if isinstance(w, QuantizedTensor):
        y = mx.gather_qmm(
            rows.astype(mx.float32) if _on_cpu() else rows,  # as in `_quantized_matmul`
            w.packed,
            w.scales,
            w.biases,
            rhs_indices=chosen,
            group_size=w.group_size,
            bits=w.bits,
            mode=w.mode,
            sorted_indices=many,
        )
    else:
        y = mx.gather_mm(rows, w.swapaxes(-1, -2), rhs_indices=chosen, sorted_indices=many)
    y = y[mx.argsort(order)] if many else y
    return y.astype(x.dtype).reshape(*x.shape[:-1], w.shape[1])


def embedding(ids: Integer[mx.array, "*batch"], w: Weight) -> Float[mx.array, "*batch E"]:
    """w[ids]. Only the requested rows are dequantized."""
    check_embedding(ids, w)
    if not isinstance(w, QuantizedTensor):
        return w[ids]
    rows = w[ids.reshape(-1)]  # `mx.dequantize` needs a matrix
    if ids.size == 0:
        return mx.zeros((*ids.shape, w.shape[-1]), embedding_dtype(w.scales))
    out = _dequantized(rows).reshape(*ids.shape, w.shape[-1])
    return out.astype(embedding_dtype(w.scales))


def softmax(x: Float[mx.array, "*shape"], axis: int = -1) -> Float[mx.array, "*shape"]:
    """Call `mx.softmax`, and return zeros for a row that contains only -inf."""
    check_softmax(x, axis)
    if x.size == 0:
        return x
    unseen = mx.max(x, axis=axis, keepdims=True) == -mx.inf
    return mx.where(unseen, 0, mx.softmax(x, axis=axis, precise=True))


def swiglu(
    gate: Float[mx.array, "*shape"], up: Float[mx.array, "*shape"]
) -> Float[mx.array, "*shape"]:
    """silu(gate) * up, with `mx.sigmoid`."""
    check_swiglu(gate, up)
    return gate * mx.sigmoid(gate) * up


def rms_norm(
    x: Float[mx.array, "*batch D"], weight: Float[mx.array, "D"], eps: float = 1e-5
) -> Float[mx.array, "*batch D"]:
    """Call `mx.fast.rms_norm`."""
    check_rms_norm(x, weight, eps)
    return mx.fast.rms_norm(x, weight, eps)


def rope(
    x: Float[mx.array, "B L H D"],
    positions: Positions = slice(None),
    base: float = 10000.0,
    traditional: bool = False,
    scaling: Yarn | None = None,
    dims: int | None = None,
) -> Float[mx.array, "B L H D"]:
    """Call `mx.fast.rope`, which expects heads before tokens, and the offset of the first token."""
    check_rope(x, base, dims)
    if dims is not None and dims < x.shape[-1]:
        rotated = rope(x[..., :dims], positions, base, traditional, scaling)
        return mx.concatenate([rotated, x[..., dims:]], axis=-1)
    batch, length, heads, dim = x.shape
    periods = None
    if scaling is not None:
        periods = 1 / mx.array(rotary_frequencies(dim, base, scaling))
        x = x * scaling.magnitude
    rotate = partial(  # of x B H L D
        mx.fast.rope,
        dims=dim,
        traditional=traditional,
        base=base if periods is None else None,
        scale=1.0,
        freqs=periods,
    )
    position_ids = position_array(positions, batch, length)
    if x.size == 0:
        return x
    if isinstance(positions, mx.array):  # arbitrary positions: pass each token as its own row
        position_ids = mx.broadcast_to(position_ids, (batch, length))
        rows = x.reshape(batch * length, heads, 1, dim)
        return rotate(rows, offset=position_ids.reshape(-1)).reshape(x.shape)
    return rotate(x.swapaxes(1, 2), offset=slice_start(positions, length)).swapaxes(1, 2)


def attention(
    q: Float[mx.array, "*batch H L D"],
    k: Weight,
    v: Weight,
    scale: float | None = None,
    mask: Mask = None,
    *,
    phase: Phase | None = None,
) -> Float[mx.array, "*batch H L D"]:
    """Call `mx.fast.scaled_dot_product_attention`, or two quantized products for packed k or v.

    For CUDA, packed k and v are dequantized: MLX's quantized products there take no slices, as
    those of a cache are, and are wrong if several heads share keys.
    """
    check_attention(q, k, v, mask)
    if _on_cuda():
        k, v = (
            part if isinstance(part, mx.array) else _dequantized(part).astype(q.dtype)
            for part in (k, v)
        )
    *batch, heads, length, dim = q.shape
    keys = k.shape[-2]
    scale = dim**-0.5 if scale is None else scale
    if q.size == 0 or keys == 0:
        return mx.zeros(q.shape, q.dtype)
    dense = isinstance(k, mx.array) and isinstance(v, mx.array)
    if isinstance(mask, str) and (length > keys or not dense):
        # MLX's own "causal" supports neither queries that see no key nor packed keys.
        mask = causal_mask(length, keys)
    if isinstance(mask, mx.array):
        mask = mx.broadcast_to(additive_mask(mask), (*batch, heads, length, keys))
    if isinstance(k, mx.array) and isinstance(v, mx.array):
        return _fast_attention(q, k, v, scale, mask)

    wide = q.reshape(*batch, k.shape[-3], -1, length, dim).astype(mx.float32) * scale
    scores = _grouped_matmul(wide, k, transpose=True)
    if isinstance(mask, mx.array):
        scores = scores + mask.reshape(scores.shape)
    return _grouped_matmul(softmax(scores), v, transpose=False).reshape(q.shape).astype(q.dtype)


def paged_attention(
    q: Float[mx.array, "T H D"],
    k: Weight,
    v: Weight,
    page_table: PageTable,
    scale: float | None = None,
    window: int | None = None,
    *,
    phase: Phase | None = None,
) -> Float[mx.array, "T H D"]:
    """Call `attention` for each sequence, because MLX has no paged attention."""
    check_paged_attention(q, k, v, page_table, window)
    return attend_by_sequence(attention, q, k, v, page_table, scale, window)


def gated_rms_norm(
    x: Float[mx.array, "*batch D"],
    gate: Float[mx.array, "*batch D"],
    weight: Float[mx.array, "D"],
    eps: float = 1e-6,
) -> Float[mx.array, "*batch D"]:
    """Call `mx.fast.rms_norm` in float32, and multiply by silu(gate)."""
    check_gated_rms_norm(x, gate, weight, eps)
    normed = mx.fast.rms_norm(x.astype(mx.float32), weight.astype(mx.float32), eps)
    wide = gate.astype(mx.float32)
    return (normed * wide * mx.sigmoid(wide)).astype(x.dtype)


def quantize(
    w: Float[mx.array, "*lead I"],
    group_size: int = 64,
    bits: int = 4,
    mode: QuantizationMode = AFFINE,
) -> QuantizedTensor:
    """Call `mx.quantize` on w, or in the float modes on a float32 copy of w.

    In float16, MLX's scale of a group of tiny numbers underflows in the float modes. MLX's CPU code
    takes a multiple of 32 numbers, which two groups of nvfp4 have.
    """
    check_quantize(w, group_size, bits, mode)
    if w.size % 32 or w.size == 0:
        return reference_quantize(w, group_size, bits, mode)
    rows = w if w.ndim > 1 else w[None]  # `mx.quantize` needs a matrix
    rows = rows if mode == AFFINE else rows.astype(mx.float32)
    packed, scales, *biases = mx.quantize(rows, group_size=group_size, bits=bits, mode=mode)
    q = QuantizedTensor(packed, scales, biases[0] if biases else None, group_size, bits, mode)
    return q if w.ndim > 1 else q.map(lambda part: part[0])


def _fast_attention(
    q: mx.array, k: mx.array, v: mx.array, scale: float, mask: mx.array | str | None
) -> mx.array:
    """Call `mx.fast.scaled_dot_product_attention`, and return zeros for queries that see no key.

    On the CPU the inputs are cast to float32, because MLX's CPU code rounds the scores to the dtype
    of q, and the largest float16 is 65,504. MLX's Metal and CUDA kernels keep float32 scores.

    Args:
        q: queries, `*batch H L D`.
        k: keys, `*batch Hkv S D`.
        v: values, `*batch Hkv S D`.
        scale: factor of the scores.
        mask: additive, `*batch H L S`, or "causal" or None.
    """
    dtype = mx.float32 if _on_cpu() else q.dtype
    if scale == 0:  # the result of MLX's CUDA kernels is NaN
        q, scale = mx.zeros_like(q), 1.0
    flat = [x.reshape(-1, *x.shape[-3:]).astype(dtype) for x in (q, k, v)]  # MLX: one batch axis
    if not isinstance(mask, mx.array):
        out = mx.fast.scaled_dot_product_attention(*flat, scale=scale, mask=mask)
        return out.reshape(q.shape).astype(q.dtype)
    # A large finite mask such as -1e9 must not become -inf when it is rounded to float16.
    bounded = mx.where(mask == -mx.inf, mask, mx.maximum(mask, mx.finfo(dtype).min))
    bounded = bounded.reshape(-1, *mask.shape[-3:]).astype(dtype)
    out = mx.fast.scaled_dot_product_attention(*flat, scale=scale, mask=bounded)
    unseen = mx.max(mask, axis=-1, keepdims=True) == -mx.inf
    return mx.where(unseen, 0, out.reshape(q.shape)).astype(q.dtype)


def _grouped_matmul(x: mx.array, w: Weight, *, transpose: bool) -> mx.array:
    """Multiply x `*batch Hkv G L I` by w `*batch Hkv S D`: one matrix for each group of G heads.

    With `transpose`, I is D and the result is `*batch Hkv G L S`. Otherwise I is S and the result
    is `*batch Hkv G L D`.
    """
    if isinstance(w, QuantizedTensor):
        return _quantized_matmul(x, w.map(lambda part: part[..., None, :, :]), transpose=transpose)
    shared = w.astype(x.dtype)[..., None, :, :]
    return x @ (shared.swapaxes(-1, -2) if transpose else shared)


def _quantized_matmul(x: mx.array, w: QuantizedTensor, *, transpose: bool) -> mx.array:
    """Call `mx.quantized_matmul`, on the CPU with x in float32.

    On the CPU, MLX 0.32 sums in the dtype of x. A sum in bfloat16 has an error of 4 to 6 percent,
    and takes seven times as long as a sum in float32. MLX's CUDA kernels take no vector, and on
    Hopper a product of matrices whose rows have one group is wrong.
    """
    if x.ndim == 1:
        return _quantized_matmul(x[None], w, transpose=transpose)[0]
    if _on_cuda() and w.shape[-1] <= w.group_size:
        dense = _dequantized(w).astype(x.dtype)
        return x @ (dense.swapaxes(-1, -2) if transpose else dense)
    wide = x.astype(mx.float32) if _on_cpu() else x
    y = mx.quantized_matmul(
        wide,
        w.packed,
        w.scales,
        w.biases,
        transpose=transpose,
        group_size=w.group_size,
        bits=w.bits,
        mode=w.mode,
    )
    return y.astype(x.dtype)


def _dequantized(w: QuantizedTensor) -> Float[mx.array, "*lead I"]:
    """Return the numbers of w in float32. w has at least two axes."""
    biases = None if w.biases is None else w.biases.astype(mx.float32)
    scales = w.scales if biases is None else w.scales.astype(mx.float32)
    return mx.dequantize(
        w.packed,
        scales,
        biases,
        group_size=w.group_size,
        bits=w.bits,
        mode=w.mode,
        dtype=mx.float32,
    )


def _on_cpu() -> bool:
    return bool(mx.default_device().type == mx.cpu)


def _on_cuda() -> bool:
    return not _on_cpu() and bool(mx.cuda.is_available())


MLX = OpSet(
    name="mlx",
    linear=linear,
    expert_linear=expert_linear,
    embedding=embedding,
    softmax=softmax,
    swiglu=swiglu,
    rms_norm=rms_norm,
    rope=rope,
    attention=attention,
    paged_attention=paged_attention,
    causal_conv=causal_conv,
    gated_delta=gated_delta,
    gated_rms_norm=gated_rms_norm,
    quantize=quantize,
    argmax=argmax,
    top_k=top_k,
    log_probability=log_probability,
)
