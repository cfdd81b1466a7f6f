"""Native handles of decoder layers: C++ objects that hold the weights for all later passes."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING

import mlx.core as mx
from tinyllm_layers import (
    MLP,
    DecoderLayer,
    GatedAttention,
    GatedDeltaNet,
    GroupedQueryAttention,
    MoE,
    RMSNorm,
)
from tinyllm_layers.cache.base import StateShape
from tinyllm_ops import OpSet, Weight

from tinyllm_kernels import _cpu as native
from tinyllm_kernels.cpu.arguments import native_weight
from tinyllm_kernels.cpu.layers.mixer_handles import is_native_mixer, mixer_handle, mixer_weights
from tinyllm_kernels.cpu.opset import CPU_INT8_OPS, CPU_OPS

if TYPE_CHECKING:
    from tinyllm_kernels._cpu import NativeWeight

NATIVE_OPS = tuple(
    field.name
    for field in fields(OpSet)
    if field.name not in ("name", "embedding", "argmax", "top_k", "log_probability")
)
"""The ops that native layers compute: all but those of embeddings and samplers. If a layer has
another function for one of these ops, the extension does not compute the layer."""

_FLOATING = (mx.float32, mx.float16, mx.bfloat16)


@dataclass(frozen=True)
class InputSpec:
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
    """The native handles of a decoder layer, one for each of its halves.

    Attributes:
        layer: the layer whose weights the handles hold.
        mixer: norm and weights of the attention half, or of the recurrent half.
        attention: the attention of the layer; None for a recurrent layer.
        state: the shape of the states of a recurrent layer; None for attention.
        feed_forward: norm and weights of the MLP or MoE half. None if other processes share the
            experts: `layer.mlp` then computes the half.
        input_spec: the inputs that the handles accept.
    """

    layer: DecoderLayer
    mixer: native.AttentionHandle | native.DeltaNetHandle
    attention: GroupedQueryAttention | None
    state: StateShape | None
    feed_forward: native.FeedForwardHandle | None
    input_spec: InputSpec


def layer_handle(layer: DecoderLayer) -> LayerHandle | None:
    """Make the handle of a layer, and evaluate the weights of the layer.

    Returns:
        The handle, or None if the extension cannot compute the layer: the layer has other classes
        than those of `tinyllm_layers`, other ops than `CPU_OPS` and `CPU_INT8_OPS`, or weights
        of several dtypes.
    """
    if type(layer) is not DecoderLayer:
        return None
    mixer, mlp = layer.mixer, layer.mlp
    # A gated layer computes its attention in a module of its own, which has the sizes and ops.
    core = mixer.attention if isinstance(mixer, GatedAttention) else mixer
    if not _is_native(layer, core):
        return None
    dense = [
        layer.input_norm.weight,
        layer.post_attention_norm.weight,
        *(mlp.w_gate, mlp.w_up, mlp.w_down),
        *_shared_expert_weights(mlp),
        *mixer_weights(mixer),
    ]
    dtypes = {w.dtype for w in dense if isinstance(w, mx.array)}
    if len(dtypes) > 1 or not dtypes.issubset(_FLOATING):
        return None
    rounds = core.ops.linear is CPU_INT8_OPS.linear and mx.float32 not in dtypes
    to_native = partial(native_weight, int8_activations=rounds)
    feed_forward = _feed_forward(layer, to_native)
    is_distributed = core.communicator.size > 1 or mlp.communicator.size > 1
    return LayerHandle(
        layer=layer,
        mixer=mixer_handle(layer.input_norm, mixer, to_native),
        attention=None if isinstance(core, GatedDeltaNet) else core,
        state=core.state_shape if isinstance(core, GatedDeltaNet) else None,
        feed_forward=feed_forward,
        input_spec=InputSpec(
            dtypes.pop(), core.hidden_size, whole=feed_forward is not None and not is_distributed
        ),
    )


def _feed_forward(
    layer: DecoderLayer, to_native: "Callable[[Weight], NativeWeight]"
) -> native.FeedForwardHandle | None:
    """Make the handle of an MLP or MoE. The result is None if other processes share the experts."""
    mlp, norm = layer.mlp, layer.post_attention_norm
    gate, up, down = (to_native(w) for w in (mlp.w_gate, mlp.w_up, mlp.w_down))
    if isinstance(mlp, MLP):
        is_first = mlp.communicator.rank == 0
        return native.mlp_handle((norm.weight, norm.eps), gate, up, down, adds_residual=is_first)
    if mlp.local_experts is not None or mlp.communicator.size > 1:
        return None
    return native.moe_handle(
        (norm.weight, norm.eps),
        native_weight(mlp.w_router),
        gate,
        up,
        down,
        experts_per_token=mlp.num_experts_per_tok,
        normalizes_routing_weights=mlp.norm_topk_prob,
        shared=[to_native(w) for w in _shared_expert_weights(mlp)],
    )


def _shared_expert_weights(mlp: MLP | MoE) -> tuple[Weight, ...]:
    """Return gate, up, down and the gate of the shared expert, or nothing without one."""
    if isinstance(mlp, MLP) or mlp.shared is None or mlp.shared_gate is None:
        return ()
    return mlp.shared.w_gate, mlp.shared.w_up, mlp.shared.w_down, mlp.shared_gate


def _is_native(layer: DecoderLayer, core: GroupedQueryAttention | GatedDeltaNet) -> bool:
    """Return True if the layer has known classes, consistent sizes, and the ops of the CPU.

    `core` is the mixer of the layer, without its output gate.
    """
    known = (
        type(layer.mixer) in (GroupedQueryAttention, GatedAttention, GatedDeltaNet)
        and type(core) in (GroupedQueryAttention, GatedDeltaNet)
        and type(layer.input_norm) is RMSNorm
        and type(layer.post_attention_norm) is RMSNorm
        and type(layer.mlp) in (MLP, MoE)
    )
    if not known:
        return False
    norms, mlp = (layer.input_norm, layer.post_attention_norm), layer.mlp
    shared = [mlp.shared] if isinstance(mlp, MoE) and mlp.shared is not None else []
    fits = (
        {norm.dim for norm in norms} == {core.hidden_size} == {mlp.dim}
        and min(core.norm_eps, *(norm.eps for norm in norms)) >= 0
        and is_native_mixer(core)
        and all(type(expert) is MLP for expert in shared)
    )
    modules = (*norms, core, mlp, *shared)
    return fits and any(
        all(_has_ops(module.ops, known_ops) for module in modules)
        for known_ops in (CPU_OPS, CPU_INT8_OPS)
    )


def _has_ops(ops: OpSet, known_ops: OpSet) -> bool:
    return all(getattr(ops, name) is getattr(known_ops, name) for name in NATIVE_OPS)
