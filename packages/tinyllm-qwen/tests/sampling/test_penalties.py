from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tinyllm_qwen.sampling.params import SamplingParams
from tinyllm_qwen.sampling.penalties import Penalties

V = 8
token_ids = st.lists(st.integers(0, V - 1), max_size=20)


def penalized(
    params: SamplingParams, prompt: list[int], output: list[int], scores: np.ndarray
) -> Any:
    penalties = Penalties(params, V, prompt)
    for token in output:
        penalties.record(mx.array(token, dtype=mx.int32))
    return np.array(penalties(mx.array(scores.astype(np.float32))))


def by_definition(
    params: SamplingParams, prompt: list[int], output: list[int], scores: np.ndarray
) -> Any:
    result = scores.copy()
    for token in range(V):
        if token in prompt or token in output:
            factor = params.repetition_penalty
            result[token] = result[token] / factor if result[token] > 0 else result[token] * factor
        if token in output:
            result[token] -= params.presence_penalty
            result[token] -= params.frequency_penalty * output.count(token)
    return result


@given(
    prompt=token_ids,
    output=token_ids,
    repetition=st.floats(0.5, 2.0),
    presence=st.floats(-2.0, 2.0),
    frequency=st.floats(-2.0, 2.0),
    seed=st.integers(0, 1000),
)
def test_the_three_penalties_follow_their_definitions(  # type: ignore[no-untyped-def]
    prompt, output, repetition, presence, frequency, seed
):
    params = SamplingParams(
        repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency
    )
    scores = np.random.default_rng(seed).normal(0, 5, V)
    np.testing.assert_allclose(
        penalized(params, prompt, output, scores),
        by_definition(params, prompt, output, scores),
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("setting", "prompt_counts"),
    [
        ({"repetition_penalty": 1.5}, True),
        ({"presence_penalty": 0.5}, False),
        ({"frequency_penalty": 0.5}, False),
    ],
)
def test_only_repetition_looks_at_the_prompt(setting: str, prompt_counts: Any) -> None:
    scores = np.full(V, 3.0)
    after = penalized(SamplingParams(**setting), [2], [], scores)  # type: ignore[arg-type]
    assert bool(after[2] < 3.0) is prompt_counts
    assert (np.delete(after, 2) == 3.0).all()


def test_repetition_lowers_negative_scores_too() -> None:
    after = penalized(SamplingParams(repetition_penalty=2.0), [0, 1], [], np.full(V, -3.0))
    assert after.tolist() == [-6.0, -6.0] + [-3.0] * (V - 2)


def test_a_banned_token_stays_banned() -> None:
    params = SamplingParams(repetition_penalty=0.5, presence_penalty=-2.0, frequency_penalty=-2.0)
    assert penalized(params, [0], [0, 0], np.full(V, -np.inf)).tolist() == [-np.inf] * V
