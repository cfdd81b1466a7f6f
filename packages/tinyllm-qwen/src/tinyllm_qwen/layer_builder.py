"""Functions that make the layers of a model from weights by their names in a checkpoint."""

from collections.abc import Mapping

import mlx.core as mx
from tinyllm_layers import (
    MLP,
    Biases,
    DecoderLayer,
    Embedding,
    GatedAttention,
    GatedDeltaNet,
    GroupedQueryAttention,
    MoE,
    RMSNorm,
    RoPE,
)
from tinyllm_ops import OpSet, QuantizedTensor, Weight

from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.config.recurrent import Recurrent
from tinyllm_qwen.partition.groups import ParallelGroups

Weights = Mapping[str, Weight]


def embedding(
    config: QwenConfig, weights: Weights, groups: ParallelGroups, ops: OpSet
) -> Embedding:
    """Make the embedding, or this process's rows of a shared embedding."""
    return Embedding(
        config.vocab_size,
        config.hidden_size,
        weights["embed_tokens.weight"],
        held=groups.partition.vocabulary if groups.world.size > 1 else None,
        communicator=groups.world,
        ops=ops,
    )


def decoder_layer(
    config: QwenConfig, weights: Weights, index: int, groups: ParallelGroups, ops: OpSet
) -> DecoderLayer:
    """Make layer number `index` of the model, or this process's part of a shared layer."""
    mixer = _mixer(config, weights, index, groups, ops)
    return _layer(config, weights, f"layers.{index}", mixer, index, groups, ops)


def draft_layer(
    config: QwenConfig, weights: Weights, groups: ParallelGroups, ops: OpSet
) -> DecoderLayer:
    """Make the layer of the draft head. It has attention, and experts if layer 0 has experts."""
    name = "mtp.layers.0"
    mixer = _attention_layer(config, weights, f"{name}.self_attn", groups, ops)
    return _layer(config, weights, name, mixer, 0, groups, ops)


def _layer(
    config: QwenConfig,
    weights: Weights,
    name: str,
    mixer: GroupedQueryAttention | GatedAttention | GatedDeltaNet,
    index: int,
    groups: ParallelGroups,
    ops: OpSet,
) -> DecoderLayer:
    """Make the layer `name` with a given mixer, and with the feed-forward half of layer `index`."""
    width = config.hidden_size
    return DecoderLayer(
        input_norm=norm(weights, f"{name}.input_layernorm", width, config, ops),
        mixer=mixer,
        post_attention_norm=norm(weights, f"{name}.post_attention_layernorm", width, config, ops),
        mlp=_moe(config, weights, f"{name}.mlp", groups, ops)
        if config.experts is not None and index in config.experts.layers
        else _mlp(config, weights, f"{name}.mlp", groups, ops),
    )


def norm(weights: Weights, name: str, dim: int, config: QwenConfig, ops: OpSet) -> RMSNorm:
    """Make the norm whose weight is `{name}.weight`."""
    return RMSNorm(dim, _vector(weights, f"{name}.weight"), config.rms_norm_eps, ops=ops)


def _mixer(
    config: QwenConfig, weights: Weights, index: int, groups: ParallelGroups, ops: OpSet
) -> GroupedQueryAttention | GatedAttention | GatedDeltaNet:
    """Make the half of layer `index` that reads earlier tokens."""
    recurrent = config.recurrent
    if recurrent is not None and index in recurrent.layers:
        return _delta_net(config, recurrent, weights, f"layers.{index}.linear_attn", groups, ops)
    return _attention_layer(config, weights, f"layers.{index}.self_attn", groups, ops)


def _attention_layer(
    config: QwenConfig, weights: Weights, name: str, groups: ParallelGroups, ops: OpSet
) -> GroupedQueryAttention | GatedAttention:
    """Make an attention layer, with an output gate if the model has output gates."""
    attention = _attention(config, weights, name, groups, ops)
    if not config.output_gate:
        return attention
    return GatedAttention(attention, weights[f"{name}.g_proj.weight"])


def _delta_net(
    config: QwenConfig,
    recurrent: Recurrent,
    weights: Weights,
    name: str,
    groups: ParallelGroups,
    ops: OpSet,
) -> GatedDeltaNet:
    part = groups.partition
    return GatedDeltaNet(
        config.hidden_size,
        len(part.key_heads),
        len(part.value_heads),
        recurrent.key_dim,
        recurrent.value_dim,
        wqkv=weights[f"{name}.in_proj_qkv.weight"],
        wz=weights[f"{name}.in_proj_z.weight"],
        wb=weights[f"{name}.in_proj_b.weight"],
        wa=weights[f"{name}.in_proj_a.weight"],
        conv=_vector(weights, f"{name}.conv1d.weight").squeeze(-1),
        a_log=_vector(weights, f"{name}.A_log"),
        dt_bias=_vector(weights, f"{name}.dt_bias"),
        norm=_vector(weights, f"{name}.norm.weight"),
        wo=weights[f"{name}.out_proj.weight"],
        norm_eps=config.rms_norm_eps,
        communicator=groups.tensor,
        ops=ops,
    )


def _attention(
    config: QwenConfig, weights: Weights, name: str, groups: ParallelGroups, ops: OpSet
) -> GroupedQueryAttention:
    part, head_dim = groups.partition, config.head_dim

    def vector(suffix: str, wanted: bool) -> mx.array | None:
        return _vector(weights, f"{name}.{suffix}") if wanted else None

    return GroupedQueryAttention(
        config.hidden_size,
        len(part.heads),
        len(part.kv_heads),
        head_dim,
        *(weights[f"{name}.{letter}_proj.weight"] for letter in "qkvo"),
        rope=RoPE(
            config.rotary_dims,
            config.context_length,
            config.rope_theta,
            scaling=config.rope_scaling,
            ops=ops,
        ),
        biases=Biases(
            q=vector("q_proj.bias", config.attention_bias),
            k=vector("k_proj.bias", config.attention_bias),
            v=vector("v_proj.bias", config.attention_bias),
            # The all-reduce sums the outputs of all ranks, so only rank 0 has the bias.
            o=vector("o_proj.bias", config.output_bias and groups.tensor.rank == 0),
        ),
        q_norm=vector("q_norm.weight", config.qk_norm),
        k_norm=vector("k_norm.weight", config.qk_norm),
        norm_eps=config.rms_norm_eps,
        communicator=groups.tensor,
        ops=ops,
    )


def _mlp(
    config: QwenConfig, weights: Weights, name: str, groups: ParallelGroups, ops: OpSet
) -> MLP:
    return MLP(
        config.hidden_size,
        len(groups.partition.mlp),
        *(weights[f"{name}.{each}_proj.weight"] for each in ("gate", "up", "down")),
        communicator=groups.tensor,
        ops=ops,
    )


def _moe(
    config: QwenConfig, weights: Weights, name: str, groups: ParallelGroups, ops: OpSet
) -> MoE:
    experts = config.experts
    assert experts is not None  # the caller has checked
    return MoE(
        config.hidden_size,
        experts.intermediate_size,
        experts.num_experts,
        experts.num_experts_per_tok,
        weights[f"{name}.gate.weight"],
        *(weights[f"{name}.switch_mlp.{each}_proj.weight"] for each in ("gate", "up", "down")),
        norm_topk_prob=experts.norm_topk_prob,
        held=groups.partition.experts,
        shared=_shared_expert(config, weights, f"{name}.shared_expert", groups, ops),
        shared_gate=weights.get(f"{name}.shared_expert_gate.weight"),
        communicator=groups.tensor,
        ops=ops,
    )


def _shared_expert(
    config: QwenConfig, weights: Weights, name: str, groups: ParallelGroups, ops: OpSet
) -> MLP | None:
    """Make the expert that every token uses, if the model has one. `MoE` sums the ranks' parts."""
    size = len(groups.partition.shared_expert)
    if not size:
        return None
    names = (f"{name}.{each}_proj.weight" for each in ("gate", "up", "down"))
    return MLP(config.hidden_size, size, *(weights[each] for each in names), ops=ops)


def _vector(weights: Weights, name: str) -> mx.array:
    """Return a dense weight; refuse a quantized tensor."""
    weight = weights[name]
    if isinstance(weight, QuantizedTensor):
        raise ValueError(f"{name}: expected a dense vector, got a quantized tensor")
    return weight
