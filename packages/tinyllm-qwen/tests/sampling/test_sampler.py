import inspect
import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_qwen.sampling.params import SamplingParams
from tinyllm_qwen.sampling.sampler import Sample, Sampler, choose, with_logprobs

V = 12
LOGITS = np.random.default_rng(7).normal(0.0, 1.5, V)
FILTERS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.6},
    {"temperature": 2.0, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.7},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 1.7, "top_k": 8, "top_p": 0.85, "min_p": 0.05},
]


def logits_of(values: np.ndarray | list[float], dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(np.asarray(values, dtype=np.float32)).astype(dtype)


def first_sample(values: np.ndarray | list[float], **settings: Any) -> Sample:
    return Sampler(SamplingParams(**settings), len(values))(logits_of(values))


def sequence(sampler: Sampler, length: int, values: np.ndarray = LOGITS) -> list[int]:
    logits = logits_of(values)
    return mx.stack([sampler(logits).token for _ in range(length)]).tolist()  # type: ignore[return-value]


def log_softmax(values: np.ndarray) -> np.ndarray:
    below = np.asarray(values, dtype=np.float64) - np.max(values)
    return below - np.log(np.exp(below).sum())


# At temperature 2 the probabilities are the numbers in the test; at 1 they would be 0.54, 0.30,
# 0.14, 0.02, 0. With the two steps of its id swapped, each case would leave another set of tokens.
@pytest.mark.parametrize(
    ("settings", "left"),
    [
        pytest.param({"min_p": 0.6}, {0, 1}, id="temperature before min-p"),
        pytest.param({"top_p": 0.8}, {0, 1, 2}, id="temperature before top-p"),
        pytest.param({"top_k": 3, "top_p": 0.72}, {0, 1}, id="top-k before top-p"),
        pytest.param({"min_p": 0.45, "top_p": 0.72}, {0, 1}, id="min-p before top-p"),
    ],
)
def test_the_steps_are_in_the_order_of_vllm(settings: dict[str, Any], left: Any) -> None:
    values = 2 * np.log([0.4, 0.3, 0.2, 0.07, 0.03])
    sampler = Sampler(SamplingParams(temperature=2.0, seed=1, **settings), 5)
    assert set(sequence(sampler, 300, values)) == left


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_draws_follow_the_temperature(temperature: float) -> None:
    values = np.array([1.0, 0.0])
    share = np.exp(log_softmax(values / temperature))[0]
    drawn = sequence(Sampler(SamplingParams(temperature=temperature, seed=1), 2), 3000, values)
    assert abs(drawn.count(0) - 3000 * share) < 4 * math.sqrt(3000 * share * (1 - share))


@pytest.mark.parametrize("settings", [{"top_k": 2}, {"top_p": 0.1}, {"min_p": 0.9}, {"seed": 3}])
def test_greedy_takes_the_best_token_whatever_the_filters(settings: dict[str, Any]) -> None:
    assert first_sample(LOGITS, **settings).token.item() == np.argmax(LOGITS)


@pytest.mark.parametrize("temperature", [1e-5, 1e-3])
def test_a_very_low_temperature_is_nearly_greedy(temperature: float) -> None:
    sampler = Sampler(SamplingParams(temperature=temperature, top_p=0.9, min_p=0.1), V)
    assert sequence(sampler, 50, LOGITS * 1e3) == [np.argmax(LOGITS)] * 50


def test_top_k_of_one_takes_the_best_token() -> None:
    sampler = Sampler(SamplingParams(temperature=2.0, top_k=1), V)
    assert sequence(sampler, 50) == [np.argmax(LOGITS)] * 50


def test_bias_comes_before_the_penalties() -> None:
    # (1 + 3) / 2 loses to 2.5; 1 / 2 + 3 would win.
    params = SamplingParams(logit_bias={0: 3.0}, repetition_penalty=2.0)
    sampler = Sampler(params, 2, prompt=[0])
    assert sampler(logits_of([1.0, 2.5])).token.item() == 1


def test_a_banned_token_is_never_chosen() -> None:
    best = int(np.argmax(LOGITS))
    assert first_sample(LOGITS, logit_bias={best: -math.inf}).token.item() != best
    sampler = Sampler(SamplingParams(temperature=1.0, logit_bias={best: -math.inf}), V)
    assert best not in sequence(sampler, 500)


def test_a_mask_limits_the_choice_and_leaves_the_logprob() -> None:
    allowed = mx.array([token in (2, 5) for token in range(V)])
    logits = logits_of(LOGITS)[None]
    for settings in (*FILTERS, {"temperature": 0.0}, {"logit_bias": {2: -math.inf}}):
        sampler = Sampler(SamplingParams(seed=1, **settings), V)
        for _ in range(20):
            token = choose([sampler], logits, [allowed])
            sampler.advance(token[0])
            assert token.item() in (2, 5)
            logprob = with_logprobs(token, logits, 0).logprob
            assert logprob.item() == pytest.approx(log_softmax(LOGITS)[token.item()], abs=1e-5)
    banned = Sampler(SamplingParams(logit_bias={2: -math.inf, 5: -math.inf}), V)
    assert choose([banned], logits, [allowed]).item() in (2, 5)


def test_an_output_token_is_penalized_from_the_next_step_on() -> None:
    sampler = Sampler(SamplingParams(frequency_penalty=1.0), 3)
    # 2.5 1.2 0.1 -> 1.5 1.2 0.1 -> 0.5 1.2 0.1 -> 0.5 0.2 0.1 -> -0.5 0.2 0.1 -> -0.5 -0.8 0.1
    assert sequence(sampler, 6, np.array([2.5, 1.2, 0.1])) == [0, 0, 1, 0, 1, 2]


def test_a_seed_gives_the_same_tokens_whatever_else_draws_random_numbers() -> None:
    params = SamplingParams(temperature=1.0, seed=42, frequency_penalty=0.1)
    alone = sequence(Sampler(params, V), 100)
    mx.random.seed(5)
    sampler, other, disturbed = Sampler(params, V), Sampler(params, V), []
    for _ in range(100):
        mx.eval(mx.random.normal((3,)), other(logits_of(LOGITS)).token)
        disturbed.append(sampler(logits_of(LOGITS)).token.item())
    assert disturbed == alone


def test_sampling_leaves_the_global_generator_alone() -> None:
    mx.random.seed(9)
    expected = mx.random.uniform(shape=(4,)).tolist()
    mx.random.seed(9)
    sequence(Sampler(SamplingParams(temperature=1.0), V), 10)
    assert mx.random.uniform(shape=(4,)).tolist() == expected


def test_later_draws_do_not_repeat_the_first_draws() -> None:
    sampler = Sampler(SamplingParams(temperature=1.0, seed=3, presence_penalty=1.0), V)
    assert sequence(sampler, 50) != sequence(sampler, 50)


def test_different_seeds_and_no_seed_give_different_tokens() -> None:
    seeds = [0, 1, 2**32, 2**64 - 1, None, None]
    drawn = [sequence(Sampler(SamplingParams(temperature=1.0, seed=s), V), 60) for s in seeds]
    assert len({tuple(tokens) for tokens in drawn}) == len(seeds)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_step_evaluates_nothing(temperature: float) -> None:
    params = SamplingParams(
        temperature=temperature,
        top_k=4,
        top_p=0.9,
        min_p=0.01,
        repetition_penalty=1.1,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logit_bias={1: 1.0},
        top_logprobs=2,
    )

    def two_steps(logits: mx.array) -> mx.array:
        sampler = Sampler(params, V)
        return sampler(logits + sampler(logits).logprob).token

    # While MLX traces a function, it raises if the function asks for a value.
    assert 0 <= mx.compile(two_steps)(logits_of(LOGITS)).item() < V
    with pytest.raises(ValueError, match="eval"):
        mx.compile(lambda logits: mx.array(logits.max().item()))(logits_of(LOGITS))


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_are_those_of_the_raw_logits_in_float32(
    dtype: mx.Dtype, temperature: float
) -> None:
    logits = logits_of(LOGITS, dtype)
    exact = log_softmax(np.array(logits.astype(mx.float32)))
    params = SamplingParams(
        temperature=temperature, top_k=3, logit_bias={0: 5.0}, presence_penalty=1.0, top_logprobs=4
    )
    sample = Sampler(params, V)(logits)
    assert sample.logprob.dtype == mx.float32
    assert sample.logprob.item() == pytest.approx(exact[sample.token.item()], abs=1e-5)
    assert sample.top_tokens.tolist() == np.argsort(-exact)[:4].tolist()
    np.testing.assert_allclose(np.array(sample.top_logprobs), np.sort(exact)[::-1][:4], atol=1e-5)


def test_logprobs_of_huge_logits_keep_their_digits() -> None:
    values = np.array([1e4, 1e4 - 1, -1e4, 1e4 - 2])
    sample = first_sample(values, top_logprobs=2)
    np.testing.assert_allclose(np.array(sample.top_logprobs), log_softmax(values)[:2], atol=1e-6)


def test_logprobs_over_qwens_vocabulary_keep_their_digits() -> None:
    values = np.random.default_rng(0).normal(0.0, 3.0, 151_936).astype(np.float32)
    sample = first_sample(values)
    assert sample.logprob.item() == pytest.approx(log_softmax(values).max(), abs=1e-5)


def test_no_top_tokens_are_reported_unless_asked_for() -> None:
    sample = first_sample(LOGITS)
    assert sample.top_tokens is None
    assert sample.top_logprobs is None


def test_more_top_tokens_than_there_are_is_all_of_them() -> None:
    assert first_sample(LOGITS, top_logprobs=99).top_tokens.tolist() == np.argsort(-LOGITS).tolist()


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_vocabulary_of_one_always_gives_its_token_with_certainty(temperature: float) -> None:
    sample = first_sample(
        [-3.0], temperature=temperature, top_k=1, top_p=0.5, min_p=0.5, top_logprobs=5
    )
    assert sample.token.item() == 0
    assert sample.logprob.item() == 0
    assert sample.top_tokens.tolist() == [0]


@pytest.mark.parametrize("settings", FILTERS)
@pytest.mark.parametrize(
    "values", [[-math.inf, 2.0, -math.inf, 1.0], [1e4, 0.0, -1e4, 0.0], [0.0] * 4]
)
def test_extreme_logits_give_a_possible_token_and_a_finite_logprob(
    values: list[float], settings: dict[str, Any]
) -> None:
    sample = first_sample(values, **settings)
    assert values[sample.token.item()] > -math.inf
    assert math.isfinite(sample.logprob.item())  # type: ignore[arg-type]


def test_equal_logits_are_all_drawn() -> None:
    sampler = Sampler(SamplingParams(temperature=1.0, seed=0), V)
    assert set(sequence(sampler, 400, np.zeros(V))) == set(range(V))


# Under pytest, jaxtyping checks signatures and would raise first: `unwrap` bypasses the check.


@pytest.mark.parametrize("shape", [(V + 1,), (1, V), ()])
def test_logits_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"logits: expected shape \(12,\), got"):
        inspect.unwrap(Sampler.__call__)(Sampler(SamplingParams(), V), mx.zeros(shape))


def test_a_bias_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="logit_bias: expected token ids from 0 to 11, got 12"):
        Sampler(SamplingParams(logit_bias={12: 1.0}), V)


def test_an_empty_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="vocab_size: expected at least 1, got 0"):
        Sampler(SamplingParams(), 0)
