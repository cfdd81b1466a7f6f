"""Settings: ranges of options, and sampling defaults."""

import math
from typing import Any

import pytest
from tinyllm_chat.local.assistant import sampling_params, unused_options
from tinyllm_chat.settings import Settings
from tinyllm_cli.messages import UsageError
from tinyllm_qwen import GenerationConfig


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "ops",
            "cuda",
            "--ops: expected one of auto, cpu, cpu-int8, metal, mlx, reference, got cuda",
        ),
        ("dtype", "int8", "--dtype: expected one of auto, float32, float16, bfloat16, got int8"),
        ("max_tokens", 0, "--max-tokens: expected at least 1, got 0"),
        ("temperature", -0.5, "--temperature: expected from 0 to 1e10, got -0.5"),
        ("temperature", math.nan, "--temperature"),
        ("temperature", math.inf, "--temperature"),
        ("top_k", -1, "--top-k: expected from 0 (all tokens) to 2^31 - 1, got -1"),
        ("top_k", 2**31, "--top-k: expected from 0 (all tokens) to 2^31 - 1, got 2147483648"),
        ("top_p", 0.0, "--top-p"),
        ("min_p", 1.5, "--min-p"),
        ("repetition_penalty", 0.0, "--repetition-penalty"),
        ("repetition_penalty", math.inf, "--repetition-penalty: expected from 1e-10 to 1e10"),
        ("seed", -1, "--seed"),
        ("seed", 2**64, "--seed"),
        ("stop", ["a", ""], "--stop"),
        ("stop", ["a", "\udcfc"], r"--stop: expected text in UTF-8, got '\udcfc'"),
        ("kv_bits", 3, "--kv-bits: expected 4 or 8, got 3"),
        ("max_model_len", 1, "--max-model-len"),
        ("server", "127.0.0.1:8000", "--server: expected a URL"),
        ("draft_model", "pico", "--draft-model: expected mtp, the draft head"),
        ("num_speculative_tokens", 0, "--num-speculative-tokens: expected from 1 to 64, got 0"),
        ("num_speculative_tokens", 2, "--num-speculative-tokens: expected --draft-model mtp"),
        ("reasoning_effort", "high", "--reasoning-effort: expected one of low, medium, xhigh"),
        ("api_key", "secret", "--api-key: expected --server URL with it"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_option(
    field: str, value: Any, message: str
) -> None:
    with pytest.raises(UsageError) as error:
        Settings(**{field: value})
    assert str(error.value).startswith(message)


def test_an_effort_excludes_no_thinking() -> None:
    with pytest.raises(UsageError, match="--reasoning-effort: expected no --no-think beside it"):
        Settings(no_think=True, reasoning_effort="low")


DEFAULTS = GenerationConfig(
    do_sample=True, temperature=0.6, top_k=20, top_p=0.95, min_p=0.1, repetition_penalty=1.1
)


def test_sampling_defaults_come_from_the_checkpoint() -> None:
    params = sampling_params(Settings(), DEFAULTS, 3)
    given = (params.temperature, params.top_k, params.top_p, params.min_p)
    assert given == (0.6, 20, 0.95, 0.1)
    assert (params.repetition_penalty, params.seed) == (1.1, 3)


def test_a_checkpoint_without_do_sample_is_decoded_greedily() -> None:
    assert sampling_params(Settings(), GenerationConfig(temperature=0.6), 0).is_greedy


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.0),
        ("top_k", 0),
        ("top_p", 1.0),
        ("min_p", 0.0),
        ("repetition_penalty", 1.0),
    ],
)
def test_an_option_overrides_the_default_even_to_turn_it_off(field: str, value: float) -> None:
    options: dict[str, Any] = {field: value}
    params = sampling_params(Settings(**options), DEFAULTS, 0)
    assert getattr(params, field) == value


def test_options_without_effect_are_found() -> None:
    greedy = GenerationConfig()
    assert unused_options(Settings(top_p=0.5, min_p=0.1), greedy) == ["--top-p", "--min-p"]
    assert unused_options(Settings(top_p=0.5, temperature=1.0), greedy) == []
    assert unused_options(Settings(top_p=0.5), DEFAULTS) == []


@pytest.mark.parametrize(
    "options",
    [
        {"ops": "cpu"},
        {"dtype": "float32"},
        {"kv_bits": 4},
        {"revision": "main"},
        {"draft_model": "mtp"},
    ],
)
def test_options_that_only_the_server_can_set_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="not allowed with --server"):
        Settings(server="http://127.0.0.1:8000", **options)


def test_the_default_number_of_draft_tokens() -> None:
    assert Settings().num_draft_tokens == 0
    assert Settings(draft_model="mtp").num_draft_tokens == 2
    assert Settings(draft_model="mtp", num_speculative_tokens=5).num_draft_tokens == 5
