"""The mixture of experts of a config: the number of experts, and their layers."""

from dataclasses import dataclass

from tinyllm_qwen.config.fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The mixture of experts that replaces the MLP in some layers of a MoE model.

    Attributes:
        num_experts: the number of experts in a layer, X.
        num_experts_per_tok: the number of experts per token, K.
        intermediate_size: the number of hidden features of each expert, F.
        norm_topk_prob: True to divide the routing weights of the K experts by their sum.
        layers: the numbers of the layers that have experts. The other layers have an MLP.
        shared_size: the number of hidden features of the expert that every token uses; 0 if there
            is no shared expert.
    """

    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int
    norm_topk_prob: bool
    layers: frozenset[int]
    shared_size: int = 0

    @classmethod
    def hybrid(cls, fields: Fields, num_hidden_layers: int) -> "Experts":
        """Read the fields of Qwen3-Next or Qwen3.5-MoE, in which all layers have experts.

        Raises:
            CheckpointError: if a field is missing, out of range, or not implemented.
        """
        num_experts = fields.integer("num_experts", 1, 1 << 14)
        # Qwen3.5-MoE omits these fields. All published Qwen3-Next have the same, neutral values.
        if fields.integer("decoder_sparse_step", 1, 1 << 14, default=1) != 1:
            raise fields.error("decoder_sparse_step", "1 or nothing")
        if fields.integers("mlp_only_layers", 0, 1 << 14):
            raise fields.error("mlp_only_layers", "no layers")
        return cls(
            num_experts=num_experts,
            num_experts_per_tok=fields.integer("num_experts_per_tok", 1, num_experts),
            intermediate_size=fields.integer("moe_intermediate_size", 1, 1 << 24),
            norm_topk_prob=_always_true(fields, "norm_topk_prob"),
            layers=frozenset(range(num_hidden_layers)),
            shared_size=fields.integer("shared_expert_intermediate_size", 1, 1 << 24),
        )

    @classmethod
    def from_hf(
        cls, fields: Fields, num_hidden_layers: int, *, normalized: bool, shared: bool
    ) -> "Experts | None":
        """Read the fields of a Qwen2-MoE, Qwen3-MoE or Qwen3-VL-MoE config.

        Args:
            fields: the config.
            num_hidden_layers: the number of layers.
            normalized: True if `norm_topk_prob` is true in all models of the type.
            shared: True if layers with experts also have a shared expert.

        Returns:
            The settings, or None if no layer has experts.

        Raises:
            CheckpointError: if a field is missing or out of range.
        """
        # Qwen and transformers 4 write num_experts, transformers 5 num_local_experts.
        new = fields.raw("num_experts") is None and fields.raw("num_local_experts") is not None
        num_experts = fields.integer("num_local_experts" if new else "num_experts", 0, 1 << 14)
        step = fields.integer("decoder_sparse_step", 1, 1 << 14, default=1)
        dense = fields.integers("mlp_only_layers", 0, 1 << 14)
        layers = frozenset(
            layer
            for layer in range(num_hidden_layers)
            if (layer + 1) % step == 0 and layer not in dense
        )
        if not (num_experts and layers):
            return None
        return cls(
            num_experts=num_experts,
            num_experts_per_tok=fields.integer("num_experts_per_tok", 1, num_experts),
            intermediate_size=fields.integer("moe_intermediate_size", 1, 1 << 24),
            norm_topk_prob=_always_true(fields, "norm_topk_prob")
            if normalized
            else fields.flag("norm_topk_prob", default=False),
            layers=layers,
            shared_size=fields.integer("shared_expert_intermediate_size", 1, 1 << 24)
            if shared
            else 0,
        )


def _always_true(fields: Fields, name: str) -> bool:
    """Return True, and refuse a config with another value, which no published model has."""
    if not fields.flag(name, default=True):
        raise fields.error(name, "true or nothing")
    return True
