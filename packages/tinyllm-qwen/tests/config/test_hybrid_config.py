"""The config.json of Qwen3.5, nested or flat, with or without a vision tower, and of Qwen3-Next."""

import pytest
from tinyllm_qwen.config.quantization import PackedFormat
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.errors import CheckpointError

# Qwen3.5-4B, with its settings nested beside those of the vision tower.
HYBRID_TEXT: dict[str, object] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248320,
    "hidden_size": 2560,
    "num_hidden_layers": 32,
    "intermediate_size": 9216,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "attn_output_gate": True,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144,
    "mtp_num_hidden_layers": 1,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
    "tie_word_embeddings": True,
}
HYBRID: dict[str, object] = {
    "model_type": "qwen3_5",
    "text_config": HYBRID_TEXT,
    "vision_config": {"model_type": "qwen3_5_vision"},
}
HYBRID_MOE = {key: value for key, value in HYBRID_TEXT.items() if key != "intermediate_size"} | {
    "model_type": "qwen3_5_moe_text",
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 640,
}
# Qwen3-Next-80B-A3B.
NEXT: dict[str, object] = {
    "model_type": "qwen3_next",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "intermediate_size": 5120,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "shared_expert_intermediate_size": 512,
    "max_position_embeddings": 262144,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
}
ROPE = {"rope_type": "default", "rope_theta": 1e7}


def test_nested_and_flat_settings_are_the_same_model() -> None:
    nested, flat = QwenConfig.from_hf(HYBRID), QwenConfig.from_hf(HYBRID_TEXT)
    assert nested.has_vision_tower
    assert nested.notices == (
        "images are not understood: the vision tower of this checkpoint is not loaded",
    )
    assert not flat.has_vision_tower
    assert flat.notices == ()
    assert nested.recurrent == flat.recurrent
    assert (nested.model_type, flat.model_type) == ("qwen3_5", "qwen3_5")


def test_the_fields_of_a_hybrid_model_are_read() -> None:
    config = QwenConfig.from_hf(HYBRID)
    recurrent = config.recurrent
    assert recurrent is not None
    assert recurrent.layers == {layer for layer in range(32) if layer % 4 != 3}
    assert (recurrent.num_key_heads, recurrent.num_value_heads) == (16, 32)
    assert (recurrent.key_dim, recurrent.value_dim, recurrent.kernel) == (128, 128, 4)
    assert (recurrent.channels, recurrent.value_width) == (8192, 4096)
    assert (config.rotary_dims, config.rope_theta, config.mtp_layers) == (64, 1e7, 1)
    assert config.output_gate
    assert config.qk_norm
    assert config.tie_word_embeddings
    assert config.experts is None


def test_the_kinds_of_layers_may_be_listed() -> None:
    kinds = ["full_attention", *["linear_attention"] * 31]
    config = QwenConfig.from_hf(HYBRID_TEXT | {"layer_types": kinds})
    assert config.recurrent is not None
    assert config.recurrent.layers == set(range(1, 32))


def test_qwen3_8_names_the_activation_of_the_gate() -> None:
    assert QwenConfig.from_hf(HYBRID_TEXT | {"output_gate_type": "swish"}) == QwenConfig.from_hf(
        HYBRID_TEXT
    )


def test_rope_settings_may_be_at_the_top_level() -> None:
    config = QwenConfig.from_hf(
        HYBRID_TEXT | {"rope_parameters": None, "rope_theta": 1e6, "partial_rotary_factor": 0.5}
    )
    assert (config.rope_theta, config.rotary_dims) == (1e6, 128)
    absent = QwenConfig.from_hf(HYBRID_TEXT | {"rope_parameters": ROPE})
    assert absent.rotary_dims == 64  # the default factor of the family is 0.25


def test_a_mixture_of_experts_has_a_shared_expert() -> None:
    config = QwenConfig.from_hf(HYBRID_MOE)
    assert config.experts is not None
    assert (config.experts.num_experts, config.experts.shared_size) == (256, 640)
    assert config.experts.norm_topk_prob
    assert config.experts.layers == set(range(32))


def test_the_published_config_of_qwen3_next_is_read() -> None:
    config = QwenConfig.from_hf(NEXT)
    assert config.recurrent is not None
    assert config.experts is not None
    assert config.recurrent.joint
    assert config.recurrent.layers == {layer for layer in range(48) if layer % 4 != 3}
    assert (config.experts.num_experts, config.experts.shared_size) == (512, 512)
    assert (config.rotary_dims, config.rope_theta, config.mtp_layers) == (64, 1e7, 1)
    assert config.output_gate
    assert config.mlx_prefix == ""


def test_formats_of_modules_have_the_prefix_of_mlx() -> None:
    path = "language_model.model.layers.0.mlp.gate"
    formats = {"group_size": 64, "bits": 4, path: {"group_size": 64, "bits": 8}}
    config = QwenConfig.from_hf(HYBRID_MOE | {"quantization": formats})
    assert config.quantization is not None
    assert config.quantization.format_of("layers.0.mlp.gate") == PackedFormat(group_size=64, bits=8)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"model_type": "qwen4_exp"},
            r"model_type: expected one of .*qwen3_5 \(Qwen3\.5.*qwen4_exp",
        ),
        (
            {"layer_types": ["mamba"] * 32},
            "layer_types: .*linear_attention or full_attention .*mamba",
        ),
        ({"layer_types": ["full_attention"]}, "layer_types: expected a list of 32 kinds"),
        ({"output_gate_type": "sigmoid"}, "output_gate_type = 'sigmoid' is not implemented"),
        ({"linear_conv_kernel_dim": 3}, "linear_conv_kernel_dim: expected 4, .* got 3"),
        (
            {"linear_num_value_heads": 24},
            r"linear_num_value_heads: expected a multiple of .*\(16\)",
        ),
        (
            {"linear_num_key_heads": None},
            "linear_num_key_heads: expected an integer .* got nothing",
        ),
        ({"head_dim": None}, "head_dim: expected an integer .* got nothing"),
        ({"attn_output_gate": False}, "attn_output_gate: expected true"),
        ({"use_sliding_window": True}, "use_sliding_window: expected false"),
        ({"attention_bias": True}, "attention_bias: expected false"),
        ({"num_experts": 8}, "num_experts: expected none"),
        ({"rope_parameters": ROPE | {"partial_rotary_factor": 0.0}}, "an even part of head_dim"),
        ({"rope_parameters": ROPE | {"partial_rotary_factor": 2}}, "expected a number from 0 to 1"),
        ({"rope_parameters": ROPE | {"rope_type": "llama3"}}, "'llama3' is not implemented yet"),
    ],
)
def test_unsupported_settings_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        QwenConfig.from_hf(HYBRID_TEXT | fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"norm_topk_prob": False}, "norm_topk_prob: expected true"),
        ({"mlp_only_layers": [1]}, "mlp_only_layers: expected no layers"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step: expected 1"),
        ({"shared_expert_intermediate_size": None}, "shared_expert_intermediate_size: expected an"),
    ],
)
def test_unsupported_experts_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        QwenConfig.from_hf(HYBRID_MOE | fields)
