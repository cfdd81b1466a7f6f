"""Native handles of decoder layers: C++ objects that hold the weights for all later passes."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
from tinyllm_layers import (
    MLP,
    DecoderLayer,
    GroupedQueryAttention,
    MoE,
    PagedCache,
    RMSNorm,
    RoPE,
)
from tinyllm_ops import MLX, OpSet

from tinyllm_kernels import _cpu as native
from tinyllm_kernels.cpu.arguments import frequencies, magnitude, native_weight
from tinyllm_kernels.cpu.attention import attention, paged_attention
from tinyllm_kernels.cpu.products import expert_linear, linear
from tinyllm_kernels.cpu.rowwise import rms_norm, rope, swiglu

NATIVE_OPS: dict[str, object] = {
    "linear": linear,
    "expert_linear": expert_linear,
    "softmax": MLX.softmax,
    "swiglu": swiglu,
    "rms_norm": rms_norm,
    "rope": rope,
    "attention": attention,
    "paged_attention": paged_attention,
    "quantize": MLX.quantize,
    "norm_rope": None,
}
"""The ops that native layers compute. If a layer has another function for one of these ops, the
extension does not compute the layer."""

_FLOATING = (mx.float32, mx.float16, mx.bfloat16)


@dataclass(frozen=True)
class InputForm:
    """The inputs that a native layer accepts.

    Attributes:
        dtype: the dtype of norms, biases and dense weights, which inputs must have too.
        width: the width of inputs, E.
        whole: True if both halves are native and no other process shares the layer.
    """

    dtype: mx.Dtype
    width: int
    whole: bool


@dataclass(frozen=True, eq=False)
class LayerHandle:
    """The native handles of a decoder layer, one for its attention and one for its MLP or MoE.

    Attributes:
        layer: the layer whose weights the handles hold.
        heads: the attention of the layer.
        attention: norm, projections and rotation of the attention half.
        feed_forward: norm and weights of the MLP or MoE half. None if this process holds only some
            of the experts: `layer.mlp` then computes the half.
        output: the projection after attention, for passes in which the cache computes attention.
        input_form: the inputs that the handles accept.
        kv_heads: the number of heads of keys and values.
        head_dim: the size of a head.
    """

    layer: DecoderLayer
    heads: GroupedQueryAttention
    attention: native.AttentionHandle
    feed_forward: native.FeedForwardHandle | None
    output: native.NativeWeight
    input_form: InputForm
    kv_heads: int
    head_dim: int


def layer_handle(layer: DecoderLayer) -> LayerHandle | None:
    """Make the handle of a layer, and evaluate the weights of the layer.

    Returns:
        The handle, or None if the extension cannot compute the layer: the layer has other classes
        than those of `tinyllm_layers`, other ops than `NATIVE_OPS`, or weights of several dtypes.
    """
    heads, mlp = layer.attention, layer.mlp
    if not isinstance(heads, GroupedQueryAttention) or not _is_native(layer, heads):
        return None
    rotary, biases = heads.rope, heads.biases
    dense = [
        layer.input_norm.weight,
        layer.post_attention_norm.weight,
        *(heads.wq, heads.wk, heads.wv, heads.wo),
        *(biases.q, biases.k, biases.v, biases.o, heads.q_norm, heads.k_norm),
        *(mlp.w_gate, mlp.w_up, mlp.w_down),
    ]
    dtypes = {w.dtype for w in dense if isinstance(w, mx.array)}
    if len(dtypes) > 1 or not dtypes.issubset(_FLOATING):
        return None
    handle = native.AttentionHandle(
        (layer.input_norm.weight, layer.input_norm.eps),
        (native_weight(heads.wq), biases.q),
        (native_weight(heads.wk), biases.k),
        (native_weight(heads.wv), biases.v),
        (native_weight(heads.wo), biases.o),
        head_dim=heads.head_dim,
        rope=(
            frequencies(heads.head_dim, rotary.base, rotary.scaling),
            rotary.traditional,
            magnitude(rotary.scaling),
        ),
        q_norm=(heads.q_norm, heads.norm_eps),
        k_norm=(heads.k_norm, heads.norm_eps),
        adds_residual=True,
    )
    feed_forward = _feed_forward(layer)
    shared = heads.communicator.size > 1 or mlp.communicator.size > 1
    return LayerHandle(
        layer=layer,
        heads=heads,
        attention=handle,
        feed_forward=feed_forward,
        output=native_weight(heads.wo),
        input_form=InputForm(
            dtypes.pop(), heads.hidden_size, whole=feed_forward is not None and not shared
        ),
        kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
    )


def _feed_forward(layer: DecoderLayer) -> native.FeedForwardHandle | None:
    """Make the handle of an MLP or MoE; None if another process holds some of the experts."""
    mlp, norm = layer.mlp, layer.post_attention_norm
    gate, up, down = (native_weight(w) for w in (mlp.w_gate, mlp.w_up, mlp.w_down))
    residual = mlp.communicator.rank == 0
    if isinstance(mlp, MLP):
        return native.mlp_handle((norm.weight, norm.eps), gate, up, down, adds_residual=residual)
    if mlp.held is not None:
        return None
    return native.moe_handle(
        (norm.weight, norm.eps),
        native_weight(mlp.w_router),
        gate,
        up,
        down,
        experts_per_token=mlp.num_experts_per_tok,
        normalizes_routing_weights=mlp.norm_topk_prob,
        adds_residual=residual,
    )


def _is_native(layer: DecoderLayer, heads: GroupedQueryAttention) -> bool:
    """Return True if the layer has known classes, consistent sizes, and the ops of the CPU."""
    known = (
        type(layer) is DecoderLayer
        and type(heads) is GroupedQueryAttention
        and type(layer.input_norm) is RMSNorm
        and type(layer.post_attention_norm) is RMSNorm
        and type(heads.rope) is RoPE
        and type(layer.mlp) in (MLP, MoE)
    )
    if not known:
        return False
    norms, mlp = (layer.input_norm, layer.post_attention_norm), layer.mlp
    fits = (
        {norm.dim for norm in norms} == {heads.hidden_size} == {mlp.dim}
        and heads.rope.dims == heads.head_dim
        and (isinstance(mlp, MLP) or mlp.shared is None)
        and min(heads.norm_eps, *(norm.eps for norm in norms)) >= 0
        and heads.head_dim % 2 == 0
        and heads.rope.base > 0
    )
    return fits and all(_has_native_ops(module.ops) for module in (*norms, heads, mlp))


def _has_native_ops(ops: OpSet) -> bool:
    return all(getattr(ops, name) is op for name, op in NATIVE_OPS.items())


def page_format(cache: PagedCache, dtype: mx.Dtype) -> tuple[int, int] | None:
    """Return the group size and the bits of a cache's pages, or two zeros for dense numbers.

    Returns:
        The format, or None if the extension cannot write keys and values of `dtype` to the pages.
        The shapes of the pages are checked by the extension.
    """
    keys, values = cache.keys, cache.values
    if isinstance(keys, mx.array):
        is_dense = keys.dtype == dtype and isinstance(values, mx.array) and values.dtype == dtype
        return (0, 0) if is_dense else None
    if not isinstance(values, mx.array) and (
        keys.mode == values.mode == "affine"
        and keys.bits in (4, 8)
        and (keys.group_size, keys.bits) == (values.group_size, values.bits)
        and keys.scales.dtype == values.scales.dtype == dtype
    ):
        return keys.group_size, keys.bits
    return None
