"""config.json becomes a QwenConfig, or an error that names the field."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tinyllm_ops import QuantizationMode
from tinyllm_qwen.config.quantization import PackedFormat
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.errors import CheckpointError

# Qwen2.5-0.5B-Instruct and Qwen3-0.6B as transformers 4 writes them.
QWEN25 = {
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "eos_token_id": 151645,
}
QWEN3 = QWEN25 | {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "attention_bias": False,
    "rope_scaling": None,
}
# Qwen3-30B-A3B.
MOE = QWEN3 | {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "tie_word_embeddings": False,
}
# Qwen1.5-MoE-A2.7B.
QWEN2_MOE = QWEN25 | {
    "model_type": "qwen2_moe",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "norm_topk_prob": False,
    "decoder_sparse_step": 1,
    "tie_word_embeddings": False,
    "sliding_window": 32768,
    "max_window_layers": 21,
}
FOUR_BITS = {"group_size": 64, "bits": 4}
NVFP4 = {"group_size": 16, "bits": 4, "mode": "nvfp4", "global_scale": True}

SLIDING = ["full_attention", "sliding_attention"]
FLOAT_FORMATS = [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]

words = st.sampled_from(
    ["", "bits", "group_size", "mode", "affine", "rope_type", "type", "default", "factor", "é"]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)


def test_qwen25_has_attention_biases_and_no_qk_norm() -> None:
    config = QwenConfig.from_hf(dict(QWEN25))
    assert (config.attention_bias, config.output_bias, config.qk_norm) == (True, False, False)
    assert config.head_dim == 896 // 14


def test_qwen3_has_qk_norm_and_a_head_dim_of_its_own() -> None:
    config = QwenConfig.from_hf(dict(QWEN3))
    assert (config.attention_bias, config.output_bias, config.qk_norm) == (False, False, True)
    assert config.head_dim * config.num_attention_heads == 2 * config.hidden_size


def test_attention_bias_of_qwen3_reaches_the_output_projection() -> None:
    config = QwenConfig.from_hf(QWEN3 | {"attention_bias": True})
    assert (config.attention_bias, config.output_bias) == (True, True)


def test_qwen3_moe_has_experts_in_every_layer() -> None:
    experts = QwenConfig.from_hf(dict(MOE)).experts
    assert experts is not None
    assert (experts.num_experts, experts.num_experts_per_tok) == (128, 8)
    assert (experts.intermediate_size, experts.norm_topk_prob) == (768, True)
    assert experts.layers == set(range(48))


def test_the_number_of_experts_has_another_name_in_transformers_5() -> None:
    renamed = {"num_experts": None, "num_local_experts": 128}
    assert QwenConfig.from_hf(MOE | renamed) == QwenConfig.from_hf(dict(MOE))


def test_qwen2_moe_has_a_shared_expert_and_biases() -> None:
    config = QwenConfig.from_hf(dict(QWEN2_MOE))
    assert (config.attention_bias, config.output_bias, config.qk_norm) == (True, False, False)
    assert config.sliding_window is None
    experts = config.experts
    assert experts is not None
    assert (experts.intermediate_size, experts.shared_size) == (1408, 5632)
    assert (experts.norm_topk_prob, experts.layers) == (False, frozenset(range(24)))
    assert not QwenConfig.from_hf(QWEN2_MOE | {"qkv_bias": False}).attention_bias


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"shared_expert_intermediate_size": None}, "shared_expert_intermediate_size.*nothing"),
        ({"use_sliding_window": True}, "use_sliding_window: expected false"),
        ({"qkv_bias": 1}, "qkv_bias.*true or false"),
    ],
)
def test_settings_that_no_qwen2_moe_has_are_refused(fields: dict[str, object], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        QwenConfig.from_hf(QWEN2_MOE | fields)


@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        ({"decoder_sparse_step": 3}, {2, 5}),
        ({"mlp_only_layers": [0, 4]}, {1, 2, 3, 5}),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [3]}, {1, 5}),
    ],
)
def test_some_layers_of_qwen3_moe_have_an_mlp(fields: dict[str, object], layers: set[int]) -> None:
    experts = QwenConfig.from_hf(MOE | {"num_hidden_layers": 6} | fields).experts
    assert experts is not None
    assert experts.layers == layers


@pytest.mark.parametrize(
    "fields", [{"num_experts": 0}, {"decoder_sparse_step": 49}, {"mlp_only_layers": [*range(48)]}]
)
def test_qwen3_moe_without_a_sparse_layer_has_no_experts(fields: dict[str, object]) -> None:
    assert QwenConfig.from_hf(MOE | fields).experts is None


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_experts": None}, "num_experts.*nothing"),
        ({"num_experts_per_tok": 129}, "num_experts_per_tok.*from 1 to 128, got 129"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size.*nothing"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step.*from 1"),
        ({"mlp_only_layers": ["a"]}, "mlp_only_layers.*integers"),
        ({"norm_topk_prob": 1}, "norm_topk_prob.*true or false"),
    ],
)
def test_experts_that_make_no_sense_are_refused(fields: dict[str, object], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        QwenConfig.from_hf(MOE | fields)


@pytest.mark.parametrize(
    ("family", "fields", "layers"),
    [
        (QWEN25, {"max_window_layers": 21}, set(range(21, 24))),
        (QWEN25, {"max_window_layers": 24}, None),
        (QWEN25, {"max_window_layers": 99}, None),
        (QWEN25, {"max_window_layers": 0, "use_sliding_window": False}, None),
        (QWEN25, {"max_window_layers": 0, "sliding_window": None}, None),
        (QWEN25, {"num_hidden_layers": 2, "layer_types": SLIDING}, {1}),
        (QWEN3, {"max_window_layers": 27}, {27}),
        (MOE, {"max_window_layers": 48}, set(range(48))),
        (MOE, {"model_type": "qwen3_moe_text", "max_window_layers": 48}, set(range(48))),
    ],
)
def test_sliding_layers_are_the_same_as_in_transformers(
    family: dict[str, object], fields: dict[str, object], layers: set[int] | None
) -> None:
    window = {"use_sliding_window": True, "sliding_window": 4096}
    found = QwenConfig.from_hf(family | window | fields).sliding_window
    assert (found and (found.size, found.layers)) == (layers and (4096, layers))  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(("mode", "bits", "group"), FLOAT_FORMATS)
def test_float_formats_have_one_width_and_one_group(
    mode: QuantizationMode, bits: int, group: int
) -> None:
    table = {"group_size": group, "bits": bits, "mode": mode}
    quantization = QwenConfig.from_hf(QWEN3 | {"quantization": table}).quantization
    assert quantization is not None
    assert quantization.default == PackedFormat(group_size=group, bits=bits, mode=mode)


def test_a_model_with_dual_chunk_attention_has_the_context_of_one_chunk() -> None:
    chunks = {"chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144}
    fields = {"max_position_embeddings": 1010000, "dual_chunk_attention_config": chunks}
    config = QwenConfig.from_hf(QWEN25 | fields)
    assert config.context_length == 262144
    [notice] = config.notices
    assert "at most 262144 tokens" in notice
    short = QwenConfig.from_hf(QWEN25 | {"dual_chunk_attention_config": chunks})
    assert (short.context_length, short.notices) == (QWEN25["max_position_embeddings"], ())


def test_entries_of_quantization_that_are_of_no_loaded_module_are_ignored() -> None:
    entries = {
        "quant_method": "mlx",
        "autoround_version": "0.12",
        "vision_tower.blocks.0.attn": {"bits": 16, "group_size": 64},
        "model.layers.0.mlp.up_proj": {},
    }
    quantization = QwenConfig.from_hf(QWEN3 | {"quantization": FOUR_BITS | entries}).quantization
    assert quantization is not None
    assert quantization.overrides == {"layers.0.mlp.up_proj": None}


def test_fields_without_effect_on_inference_are_ignored() -> None:
    harmless = {"use_cache": True, "transformers_version": "9.9", "pad_token_id": None, "x": [1]}
    assert QwenConfig.from_hf(QWEN3 | harmless) == QwenConfig.from_hf(dict(QWEN3))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"model_type": "qwen4_exp"}, "model_type.*qwen2 .*qwen3 .*qwen3_moe.*qwen4_exp"),
        ({"model_type": ["qwen3"]}, "model_type.*a string"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope_parameters.*llama3"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling.*linear"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.*partial"),
        ({"rope_parameters": {"full_attention": {}}}, "rope_parameters.*per kind of layer"),
        ({"rope_parameters": {"rope_theta": 5.0}}, "rope_theta.*one value"),
        ({"rope_type": "yarn", "factor": 4.0}, "rope_type.*rope_parameters.*'yarn'"),
        ({"layer_types": "full_attention"}, "layer_types.*a list of 28"),
        ({"layer_types": ["full_attention"]}, "layer_types.*a list of 28"),
        ({"layer_types": ["linear_attention"] * 28}, "layer_types.*'linear_attention'"),
        ({"layer_types": ["sliding_attention"] * 28}, "use_sliding_window.*true"),
        (
            {"use_sliding_window": True, "sliding_window": 1 << 31, "max_window_layers": 0},
            "sliding_window.*2147483647",
        ),
        ({"hidden_act": "gelu"}, "hidden_act.*gelu"),
        ({"num_experts": 8}, "num_experts"),
        ({"dual_chunk_attention_config": {"local_size": 1}}, "dual_chunk.*chunk_size.*nothing"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization.*gptq"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "bitsandbytes"),
        ({"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp5"}}, "mode.*mxfp4.*mxfp5"),
        ({"quantization": {"group_size": 64, "bits": 4, "mode": "mxfp4"}}, "group_size.*32"),
        ({"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp8"}}, "bits.*8, as mxfp8"),
        ({"quantization": FOUR_BITS | {"lm_head": NVFP4}}, "lm_head: a global scale"),
        ({"quantization": {"group_size": 64, "bits": 7}}, "bits.*7"),
        ({"quantization": {"group_size": 16, "bits": 4}}, "group_size.*16"),
        ({"quantization": {"bits": 4}}, "group_size.*nothing"),
        ({"quantization": FOUR_BITS | {"lm_head": 8}}, "lm_head.*8"),
        ({"quantization": 4}, "quantization.*an object"),
    ],
)
def test_unimplemented_features_are_refused_by_name(fields: dict[str, object], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        QwenConfig.from_hf(QWEN3 | fields)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num_hidden_layers", 10**9, "from 1 to 1024, got 1000000000"),
        ("num_hidden_layers", True, "an integer from 1 to 1024, got True"),
        ("num_hidden_layers", None, "an integer from 1 to 1024, got nothing"),
        ("num_attention_heads", 0, "an integer from 1"),
        ("num_key_value_heads", 5, r"a divisor of num_attention_heads \(16\), got 5"),
        ("head_dim", 127, "an even number"),
        ("head_dim", -2, "an integer from 2"),
        ("hidden_size", 1024.0, "an integer from 1 to 1048576, got 1024.0"),
        ("hidden_size", "1024", "an integer from 1 to 1048576, got '1024'"),
        pytest.param("hidden_size", 10**5000, "an integer of about 5000 digits", id="long"),
        ("rms_norm_eps", -1e-6, "a number from 0 to 1, got -1e-06"),
        ("rms_norm_eps", float("nan"), "a number from 0 to 1, got nan"),
        ("rms_norm_eps", False, "a number from 0 to 1, got False"),
        ("rope_theta", float("inf"), "a number from 1 to 1e.15, got inf"),
        pytest.param("rope_theta", 10**400, "a number from 1 to 1e.15", id="overflow"),
        ("rope_theta", None, "got nothing"),
        ("tie_word_embeddings", 1, "true or false, got 1"),
        ("vocab_size", [1] * 1000, "a list of 1000 entries"),
    ],
)
def test_a_field_of_wrong_type_or_range_is_named(name: str, value: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=f"{name}.*{message}"):
        QwenConfig.from_hf(QWEN3 | {name: value})


def test_a_missing_head_dim_needs_a_width_that_the_heads_divide() -> None:
    with pytest.raises(CheckpointError, match="head_dim is missing"):
        QwenConfig.from_hf(QWEN25 | {"hidden_size": 897})


@pytest.mark.parametrize("key", ["quantization", "quantization_config"])
def test_quantization_has_a_default_and_overrides_by_path(key: str) -> None:
    table = FOUR_BITS | {
        "model.embed_tokens": {"group_size": 32, "bits": 8, "mode": "affine"},
        "model.layers.0.mlp.down_proj": False,
        "model.layers.1.mlp.down_proj": True,
    }
    quantization = QwenConfig.from_hf(QWEN3 | {key: table}).quantization
    assert quantization is not None
    assert quantization.format_of("embed_tokens") == PackedFormat(group_size=32, bits=8)
    assert quantization.format_of("layers.0.mlp.down_proj") is None
    assert quantization.format_of("layers.1.mlp.down_proj") == PackedFormat(group_size=64, bits=4)
    assert quantization.format_of("lm_head") == PackedFormat(group_size=64, bits=4)


@given(
    st.dictionaries(
        st.sampled_from([*MOE, "rope_parameters", "quantization", "layer_types", "sliding_window"]),
        json_values,
        max_size=4,
    )
)
def test_any_json_in_any_field_gives_a_config_or_a_checkpoint_error(
    fields: dict[str, object],
) -> None:
    try:
        config = QwenConfig.from_hf(QWEN3 | fields)
    except CheckpointError:
        return
    assert config.num_attention_heads % config.num_key_value_heads == 0
    assert config.head_dim % 2 == 0
