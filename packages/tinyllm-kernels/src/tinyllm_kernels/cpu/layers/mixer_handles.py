"""Native handles of the first half of a decoder layer: attention, or a recurrent layer."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import mlx.core as mx
from tinyllm_layers import GatedAttention, GatedDeltaNet, GroupedQueryAttention, RMSNorm, RoPE
from tinyllm_ops import Weight

from tinyllm_kernels import _cpu as native
from tinyllm_kernels.cpu.recurrent import MAX_CONV_WIDTH
from tinyllm_kernels.rope_arguments import frequencies, magnitude

if TYPE_CHECKING:
    from tinyllm_kernels._cpu import NativeWeight

Mixer = GroupedQueryAttention | GatedAttention | GatedDeltaNet


def is_native_mixer(core: GroupedQueryAttention | GatedDeltaNet) -> bool:
    """Return True if the extension computes the sizes and the rotation of an ungated mixer."""
    if isinstance(core, GatedDeltaNet):
        return 2 <= core.conv.shape[1] <= MAX_CONV_WIDTH
    return type(core.rope) is RoPE and core.head_dim % 2 == 0 and core.rope.base > 0


def mixer_weights(mixer: Mixer) -> list[Weight | None]:
    """Return the weights that must have the dtype of the inputs, unless they are quantized."""
    if isinstance(mixer, GatedAttention):
        return [mixer.wg, *mixer_weights(mixer.attention)]
    if isinstance(mixer, GatedDeltaNet):
        projections = [mixer.wqkv, mixer.wz, mixer.wb, mixer.wa, mixer.wo]
        return [*projections, mixer.conv, mixer.norm]
    biases = mixer.biases
    return [
        *(mixer.wq, mixer.wk, mixer.wv, mixer.wo),
        *(biases.q, biases.k, biases.v, biases.o, mixer.q_norm, mixer.k_norm),
    ]


def mixer_handle(
    norm: RMSNorm, mixer: Mixer, to_native: "Callable[[Weight], NativeWeight]"
) -> native.AttentionHandle | native.DeltaNetHandle:
    """Make the handle of the first half of a layer.

    Args:
        norm: the norm before the layer.
        mixer: the layer.
        to_native: converts a weight for the products of the layer.
    """
    before = norm.weight, norm.eps
    if isinstance(mixer, GatedDeltaNet):
        return native.DeltaNetHandle(
            before,
            [to_native(w) for w in (mixer.wqkv, mixer.wz, mixer.wb, mixer.wa, mixer.wo)],
            mixer.conv,
            mixer.a_log,
            mixer.dt_bias,
            (mixer.norm, mixer.norm_eps),
            key_heads=mixer.num_key_heads,
            key_dim=mixer.key_dim,
        )
    if isinstance(mixer, GatedAttention):
        return _attention_handle(before, mixer.attention, mixer.wg, to_native)
    return _attention_handle(before, mixer, None, to_native)


def _attention_handle(
    norm: tuple[mx.array, float],
    attention: GroupedQueryAttention,
    gate: Weight | None,
    to_native: "Callable[[Weight], NativeWeight]",
) -> native.AttentionHandle:
    rotary, biases, eps = attention.rope, attention.biases, attention.norm_eps
    return native.AttentionHandle(
        norm,
        (to_native(attention.wq), biases.q),
        (to_native(attention.wk), biases.k),
        (to_native(attention.wv), biases.v),
        (to_native(attention.wo), biases.o),
        head_dim=attention.head_dim,
        rope=(
            frequencies(rotary.dims, rotary.base, rotary.scaling),
            rotary.traditional,
            magnitude(rotary.scaling),
        ),
        q_norm=None if attention.q_norm is None else (attention.q_norm, eps),
        k_norm=None if attention.k_norm is None else (attention.k_norm, eps),
        gate=None if gate is None else to_native(gate),
    )
