"""The models that tools/parity.py compares: small shapes of every family, and their formats."""

from dataclasses import dataclass

SHAPE: dict[str, object] = {
    "vocab_size": 320,
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}
QWEN2 = SHAPE | {"rope_theta": 1e6, "model_type": "qwen2", "tie_word_embeddings": True}
QWEN3 = QWEN2 | {"model_type": "qwen3", "tie_word_embeddings": False, "head_dim": 64}
EXPERTS = QWEN3 | {
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 128,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
QWEN2_EXPERTS = QWEN2 | {
    "model_type": "qwen2_moe",
    "tie_word_embeddings": False,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 256,
}
# Two recurrent layers around an attention layer, which rotates 16 of 64 features. Published models
# have three recurrent layers for each attention layer. Four layers would round more often than the
# three of the other families: mlx-lm's own error in float16 is then 5.5e-3.
HYBRID = SHAPE | {
    "model_type": "qwen3_5",
    "tie_word_embeddings": True,
    "head_dim": 64,
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {"type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
}
HYBRID_EXPERTS = HYBRID | {
    "model_type": "qwen3_5_moe",
    "tie_word_embeddings": False,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
}
# Two families in one: mlx-lm requires the fields of both.
NEXT = (
    EXPERTS
    | HYBRID_EXPERTS
    | {"model_type": "qwen3_next", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
FAMILIES = {
    "qwen2": QWEN2,
    "qwen2, untied": QWEN2 | {"tie_word_embeddings": False},
    "qwen2, one k/v head": QWEN2 | {"num_key_value_heads": 1},
    "qwen3": QWEN3,
    "qwen3, tied": QWEN3 | {"tie_word_embeddings": True, "head_dim": 32},
    "qwen3, YaRN": QWEN3 | {"rope_scaling": YARN},
    "qwen2-moe": QWEN2_EXPERTS,
    "qwen3-moe": EXPERTS,
    "qwen3-moe, an MLP in layer 1": EXPERTS | {"mlp_only_layers": [1], "norm_topk_prob": False},
    "qwen3-next": NEXT,
    "qwen3.5": HYBRID,
    "qwen3.5-moe": HYBRID_EXPERTS,
}

# With seed 7 these weights magnify rounding: in float16 the error of each OpSet is 1.7 times that
# of qwen3.5-moe, which has the same layers. Seeds 1 to 5 give 1.1 to 1.7 times, without a format.
SEEDS = {"qwen3-next": 1}


@dataclass(frozen=True)
class Format:
    """Arguments of `mx.quantize`; without `bits` the weights stay unquantized."""

    group_size: int | None = None
    bits: int | None = None
    mode: str = "affine"

    def __str__(self) -> str:
        """The format's name in the tables."""
        if self.bits is None:
            return "not packed"
        if self.mode == "affine":
            return f"{self.bits}-bit, group {self.group_size}"
        return self.mode


PLAIN = Format()
FORMATS = (
    PLAIN,
    *(Format(64, bits) for bits in (2, 3, 4, 5, 6, 8)),
    Format(32, 4),
    Format(128, 4),
    Format(32, 4, "mxfp4"),
    Format(32, 8, "mxfp8"),
    Format(16, 4, "nvfp4"),
)
