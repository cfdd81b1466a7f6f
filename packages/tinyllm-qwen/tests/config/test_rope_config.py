"""RoPE settings of config.json, in every spelling."""

import pytest
from tinyllm_ops import Yarn
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.errors import CheckpointError

# Qwen3-0.6B as transformers 4 writes it, without the fields that have no effect.
QWEN3 = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 10000},
        {"rope_theta": 10000.0, "rope_scaling": {"type": "default"}},
        {"rope_theta": 10000.0, "rope_scaling": {"type": "yarn", "rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
        {"rope_theta": 10000.0, "rope_parameters": {"rope_theta": 10000}},
    ],
)
def test_rope_theta_is_read_in_every_spelling(spelling: dict[str, object]) -> None:
    without = {key: value for key, value in QWEN3.items() if key != "rope_theta"}
    assert QwenConfig.from_hf(without | spelling).rope_theta == 10000.0


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 1e6, "rope_scaling": YARN | {"rope_type": "yarn"}},
        {"rope_theta": 1e6, "rope_scaling": YARN | {"type": "yarn"}},
        {"rope_parameters": YARN | {"rope_type": "yarn", "rope_theta": 1e6}},
        {"rope_theta": 1e6, "rope_scaling": YARN | {"type": "yarn", "rope_type": "yarn"}},
    ],
)
def test_yarn_is_read_in_every_spelling(spelling: dict[str, object]) -> None:
    without = {key: value for key, value in QWEN3.items() if key != "rope_theta"}
    config = QwenConfig.from_hf(without | spelling)
    assert config.rope_scaling == Yarn(4.0, 32_768)
    assert (config.max_position_embeddings, config.context_length) == (40_960, 131_072)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"factor": 2}, Yarn(2.0, 40_960)),
        ({"original_max_position_embeddings": 10_240}, Yarn(4.0, 10_240)),
        ({"factor": 2.0, "attention_factor": 1.5}, Yarn(2.0, 40_960, attention_factor=1.5)),
        (
            {"factor": 2.0, "mscale": 1.0, "mscale_all_dim": 1.0},
            Yarn(2.0, 40_960, attention_factor=1.0),
        ),
        ({"factor": 2.0, "mscale": 0.5}, Yarn(2.0, 40_960)),
        (
            {"factor": 2.0, "beta_fast": 20, "beta_slow": 2, "truncate": False},
            Yarn(2.0, 40_960, 20.0, 2.0, truncate=False),
        ),
    ],
)
def test_absent_yarn_settings_default_as_in_transformers(
    settings: dict[str, object], expected: Yarn
) -> None:
    table = {"rope_type": "yarn"} | settings
    assert QwenConfig.from_hf(QWEN3 | {"rope_scaling": table}).rope_scaling == expected


def test_attn_factor_of_yarn_is_a_multiplier_as_in_vllm() -> None:
    # the settings of DeepSeek-R1-0528-Qwen3-8B, whose queries and keys keep their magnitude
    table = YARN | {"rope_type": "yarn", "attn_factor": 0.8782488562869419}
    scaling = QwenConfig.from_hf(QWEN3 | {"rope_scaling": table}).rope_scaling
    assert scaling is not None
    assert scaling.magnitude == pytest.approx(1, abs=1e-12)
    table |= {"mscale": 1.0, "mscale_all_dim": 1.0, "attn_factor": 0.5}
    scaling = QwenConfig.from_hf(QWEN3 | {"rope_scaling": table}).rope_scaling
    assert scaling is not None
    assert scaling.magnitude == 0.5


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"factor": 0.5}, "factor.*from 1"),
        ({"factor": "4"}, "factor.*'4'"),
        ({"factor": float("inf")}, "factor.*inf"),
        ({"factor": 4.0, "beta_fast": 1, "beta_slow": 2}, "beta_slow.*at most beta_fast"),
        ({"factor": 4.0, "original_max_position_embeddings": 0}, "original_max_position.*from 1"),
        ({"factor": 4.0, "attention_factor": -1}, "attention_factor"),
        ({"factor": 4.0, "truncate": "no"}, "truncate.*true or false"),
        ({"factr": 4.0}, "factr is no known setting"),
        ({"factor": 4.0, "extrapolation_factor": 2.0}, "extrapolation_factor.*1,.*2.0"),
    ],
)
def test_settings_of_yarn_that_make_no_sense_are_refused(
    settings: dict[str, object], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        QwenConfig.from_hf(QWEN3 | {"rope_scaling": {"rope_type": "yarn"} | settings})
