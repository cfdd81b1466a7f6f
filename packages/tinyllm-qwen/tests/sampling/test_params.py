import dataclasses
import math
from typing import Any

import pytest
from tinyllm_qwen.sampling.params import SamplingParams

OUT_OF_RANGE: list[tuple[str, float, str]] = [
    ("temperature", -1.0, "[0, 1e10]"),
    ("temperature", math.inf, "[0, 1e10]"),
    ("temperature", 1e39, "[0, 1e10]"),
    ("top_k", -1, "[0, inf)"),
    ("top_p", 0.0, "(0, 1]"),
    ("top_p", 1.5, "(0, 1]"),
    ("min_p", -0.1, "[0, 1]"),
    ("min_p", 1.1, "[0, 1]"),
    ("repetition_penalty", 0.0, "[1e-10, 1e10]"),
    ("repetition_penalty", math.inf, "[1e-10, 1e10]"),
    ("repetition_penalty", 1e-39, "[1e-10, 1e10]"),
    ("presence_penalty", 2.5, "[-2, 2]"),
    ("presence_penalty", -2.5, "[-2, 2]"),
    ("frequency_penalty", 2.5, "[-2, 2]"),
    ("frequency_penalty", -2.5, "[-2, 2]"),
    ("top_logprobs", -1, "[0, inf)"),
    ("seed", -1, "[0, 2^64)"),
    ("seed", 2**64, "[0, 2^64)"),
]
FLOAT_FIELDS = [
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
]


def message_of(**settings: float) -> str:
    with pytest.raises(ValueError, match="expected a number") as refused:
        SamplingParams(**settings)  # type: ignore[arg-type]
    return str(refused.value)


@pytest.mark.parametrize(("name", "value", "expected"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_named_with_what_was_expected(
    name: str, value: float, expected: Any
) -> None:
    assert message_of(**{name: value}) == f"{name}: expected a number in {expected}, got {value}"


@pytest.mark.parametrize("name", FLOAT_FIELDS)
def test_nan_is_refused(name: str) -> None:
    assert message_of(**{name: math.nan}).startswith(name)


@pytest.mark.parametrize("bias", [math.nan, math.inf, 1e39])
def test_a_bias_that_no_score_survives_is_refused(bias: Any) -> None:
    assert message_of(logit_bias={3: bias}).startswith(  # type: ignore[arg-type]
        "logit_bias[3]: expected a number in [-inf, 1e10]"
    )


def test_a_negative_token_id_in_the_bias_is_refused() -> None:
    assert message_of(logit_bias={-1: 1.0}).endswith("got -1")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 100.0),
        ("top_k", 10**6),
        ("top_p", 1.0),
        ("top_p", 1e-9),
        ("min_p", 0.0),
        ("min_p", 1.0),
        ("presence_penalty", -2.0),
        ("frequency_penalty", 2.0),
        ("seed", 0),
        ("seed", 2**64 - 1),
        ("logit_bias", {0: -math.inf}),
    ],
)
def test_the_ends_of_the_ranges_are_accepted(name: str, value: float) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("temperature", "greedy"), [(0.0, True), (9e-6, True), (1e-5, False), (1.0, False)]
)
def test_a_temperature_too_low_for_float32_is_greedy(temperature: float, greedy: Any) -> None:
    assert SamplingParams(temperature=temperature).is_greedy is greedy


def test_parameters_do_not_change_when_the_callers_bias_does() -> None:
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias)
    bias[1] = 9.0
    assert params.logit_bias == {1: 2.0}


def test_equal_parameters_hash_equal_and_survive_replace_and_asdict() -> None:
    params = SamplingParams(temperature=0.5, logit_bias={1: 2.0})
    again = SamplingParams(**dataclasses.asdict(params))
    assert again == params
    assert hash(again) == hash(params)
    assert dataclasses.replace(params, logit_bias={1: 3.0}) != params


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["top_k", "top_logprobs", "seed"])
def test_a_number_that_is_not_an_integer_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: expected an integer, got 1\.5$"):
        SamplingParams(**{name: 1.5})  # type: ignore[arg-type]


@pytest.mark.usefixtures("unchecked")
def test_a_token_id_of_the_bias_is_an_integer() -> None:
    with pytest.raises(ValueError, match=r"^logit_bias: expected an integer, got 1\.5$"):
        SamplingParams(logit_bias={1.5: 1.0})  # type: ignore[dict-item]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repetition_penalty"])
@pytest.mark.parametrize("value", [None, "1", 1j])
def test_a_value_that_is_no_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}: expected a number, got"):
        SamplingParams(**{name: value})


@pytest.mark.usefixtures("unchecked")
def test_a_bias_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(ValueError, match="logit_bias: expected numbers by token id, got None"):
        SamplingParams(logit_bias=None)  # type: ignore[arg-type]
