"""The builder of the layers of a model, from weights by their names in a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx
from tinyllm_layers import (
    MLP,
    SINGLE,
    Biases,
    Communicator,
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

from tinyllm_qwen.config.experts import Experts
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.config.recurrent import Recurrent
from tinyllm_qwen.partition.groups import ParallelGroups


@dataclass(frozen=True, eq=False)
class LayerBuilder:
    """Makes layers from weights. In several processes, a layer is this process's part of a layer.

    Attributes:
        config: the architecture of the whole model.
        weights: the weights by name; see `Qwen`.
        groups: the processes that share the model.
        ops: the implementation of the maths.
    """

    config: QwenConfig
    weights: Mapping[str, Weight]
    groups: ParallelGroups
    ops: OpSet

    def embedding(self) -> Embedding:
        """Make the embedding."""
        return Embedding(
            self.config.vocab_size,
            self.config.hidden_size,
            self.weights["embed_tokens.weight"],
            local_vocab=self.groups.partition.vocabulary if self.groups.world.size > 1 else None,
            communicator=self.groups.world,
            ops=self.ops,
        )

    def norm(self, name: str) -> RMSNorm:
        """Make the norm whose weight is `{name}.weight`."""
        weight, eps = self._vector(f"{name}.weight"), self.config.rms_norm_eps
        return RMSNorm(self.config.hidden_size, weight, eps, ops=self.ops)

    def decoder_layer(self, index: int) -> DecoderLayer:
        """Make layer number `index` of the model."""
        name, recurrent = f"layers.{index}", self.config.recurrent
        if recurrent is not None and index in recurrent.layers:
            return self._layer(name, self._delta_net(f"{name}.linear_attn", recurrent), index)
        return self._layer(name, self._attention(f"{name}.self_attn"), index)

    def draft_layer(self) -> DecoderLayer:
        """Make the attention layer of the draft head, with experts if layer 0 has experts."""
        name = "mtp.layers.0"
        return self._layer(name, self._attention(f"{name}.self_attn"), 0)

    def _layer(
        self, name: str, mixer: GroupedQueryAttention | GatedAttention | GatedDeltaNet, index: int
    ) -> DecoderLayer:
        """Make the layer `name` with a given mixer, and with experts if layer `index` has them."""
        experts, part = self.config.experts, self.groups.partition
        return DecoderLayer(
            input_norm=self.norm(f"{name}.input_layernorm"),
            mixer=mixer,
            post_attention_norm=self.norm(f"{name}.post_attention_layernorm"),
            mlp=self._moe(f"{name}.mlp", experts)
            if experts is not None and index in experts.layers
            else self._mlp(f"{name}.mlp", part.mlp, self.groups.tensor),
        )

    def _delta_net(self, name: str, recurrent: Recurrent) -> GatedDeltaNet:
        part, weights = self.groups.partition, self.weights
        conv = self._vector(f"{name}.conv1d.weight").squeeze(-1)
        mx.eval(conv)  # other threads cannot evaluate a lazy array of this one
        return GatedDeltaNet(
            self.config.hidden_size,
            len(part.key_heads),
            len(part.value_heads),
            recurrent.key_dim,
            recurrent.value_dim,
            wqkv=weights[f"{name}.in_proj_qkv.weight"],
            wz=weights[f"{name}.in_proj_z.weight"],
            wb=weights[f"{name}.in_proj_b.weight"],
            wa=weights[f"{name}.in_proj_a.weight"],
            conv=conv,
            a_log=self._vector(f"{name}.A_log"),
            dt_bias=self._vector(f"{name}.dt_bias"),
            norm=self._vector(f"{name}.norm.weight"),
            wo=weights[f"{name}.out_proj.weight"],
            norm_eps=self.config.rms_norm_eps,
            communicator=self.groups.tensor,
            ops=self.ops,
        )

    def _attention(self, name: str) -> GroupedQueryAttention | GatedAttention:
        """Make an attention layer, with an output gate if the model has output gates."""
        config, part = self.config, self.groups.partition

        def vector(suffix: str, wanted: bool) -> mx.array | None:
            return self._vector(f"{name}.{suffix}") if wanted else None

        attention = GroupedQueryAttention(
            config.hidden_size,
            len(part.heads),
            len(part.kv_heads),
            config.head_dim,
            *(self.weights[f"{name}.{letter}_proj.weight"] for letter in "qkvo"),
            rope=RoPE(
                config.rotary_dims,
                config.context_length,
                config.rope_theta,
                scaling=config.rope_scaling,
                ops=self.ops,
            ),
            biases=Biases(
                q=vector("q_proj.bias", config.attention_bias),
                k=vector("k_proj.bias", config.attention_bias),
                v=vector("v_proj.bias", config.attention_bias),
                # The all-reduce sums the outputs of all ranks, so only rank 0 has the bias.
                o=vector("o_proj.bias", config.output_bias and self.groups.tensor.rank == 0),
            ),
            q_norm=vector("q_norm.weight", config.qk_norm),
            k_norm=vector("k_norm.weight", config.qk_norm),
            norm_eps=config.rms_norm_eps,
            communicator=self.groups.tensor,
            ops=self.ops,
        )
        if not config.output_gate:
            return attention
        return GatedAttention(attention, self.weights[f"{name}.g_proj.weight"])

    def _mlp(self, name: str, features: range, communicator: Communicator) -> MLP:
        """Make the MLP `name` with the hidden features of this process."""
        weights = (self.weights[f"{name}.{each}_proj.weight"] for each in ("gate", "up", "down"))
        return MLP(
            self.config.hidden_size,
            len(features),
            *weights,
            communicator=communicator,
            ops=self.ops,
        )

    def _moe(self, name: str, experts: Experts) -> MoE:
        features, projections = self.groups.partition.shared_expert, ("gate", "up", "down")
        return MoE(
            self.config.hidden_size,
            experts.intermediate_size,
            experts.num_experts,
            experts.num_experts_per_tok,
            self.weights[f"{name}.gate.weight"],
            *(self.weights[f"{name}.switch_mlp.{each}_proj.weight"] for each in projections),
            norm_topk_prob=experts.norm_topk_prob,
            local_experts=self.groups.partition.experts,
            # `MoE` itself sums the parts of the shared expert.
            shared=self._mlp(f"{name}.shared_expert", features, SINGLE) if features else None,
            shared_gate=self.weights.get(f"{name}.shared_expert_gate.weight"),
            communicator=self.groups.tensor,
            ops=self.ops,
        )

    def _vector(self, name: str) -> mx.array:
        """Return a dense weight; refuse a quantized tensor."""
        weight = self.weights[name]
        if isinstance(weight, QuantizedTensor):
            raise ValueError(f"{name}: expected a dense vector, got a quantized tensor")
        return weight
