"""Sampling from the best tokens of each part of the vocabulary equals sampling from all scores."""

import math
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_layers import Communicator
from tinyllm_ops import MLX
from tinyllm_ops.testing import assert_close, normal
from tinyllm_qwen.sampling.best_tokens import BestTokens
from tinyllm_qwen.sampling.params import SamplingParams
from tinyllm_qwen.sampling.sampler import Sampler

V = 300
PARTS = [range(100), range(100, 200), range(200, 300)]


class ThreeRanks(Communicator):
    size = 3

    def __init__(self, packed: list[mx.array]) -> None:
        self.packed = packed

    def all_gather(self, part: mx.array) -> mx.array:
        assert mx.array_equal(part, self.packed[0], equal_nan=True)
        return mx.stack(self.packed)


def found(scores: mx.array, k: int) -> BestTokens:
    """Return the best k tokens of each part of the vocabulary, gathered as three ranks do."""
    parts = [BestTokens.of(scores[part.start : part.stop], k, part.start, MLX) for part in PARTS]
    return parts[0].gathered(ThreeRanks([part.packed() for part in parts]))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(top_logprobs=4),
        SamplingParams(temperature=0.8, top_k=5, seed=1),
        SamplingParams(temperature=2.0, top_k=20, top_p=0.9, seed=2, top_logprobs=3),
        SamplingParams(temperature=1.3, top_k=50, min_p=0.02, seed=3),
        SamplingParams(temperature=1.0, top_k=299, top_p=0.95, min_p=0.001, seed=4),
    ],
    ids=lambda params: f"{params.temperature}-{params.top_k}-{params.top_p}-{params.top_logprobs}",
)
def test_best_tokens_give_the_choice_of_all_scores(params: SamplingParams) -> None:
    whole, parted = Sampler(params, V, MLX), Sampler(params, V, MLX)
    for step in range(20):
        scores = normal((V,), seed=step, magnitude=3.0)
        expected = whole(scores)
        assert parted.num_best is not None
        sample = parted(found(scores, min(parted.num_best, 100)))
        assert sample.token.item() == expected.token.item()
        assert_close(sample.logprob, np.array(expected.logprob, dtype=np.float64))
        assert (sample.top_tokens is None) == (params.top_logprobs == 0)
        if sample.top_tokens is not None and expected.top_tokens is not None:
            assert sample.top_tokens.tolist() == expected.top_tokens.tolist()
            assert sample.top_logprobs is not None
            assert_close(sample.top_logprobs, np.array(expected.top_logprobs, dtype=np.float64))


def test_draws_differ_from_the_best_token() -> None:
    params = SamplingParams(temperature=2.0, top_k=20, seed=2)
    sampler = Sampler(params, V, MLX)
    tokens = [int(sampler(found(normal((V,), seed=0), 20)).token) for _ in range(20)]
    assert len(set(tokens)) > 3


def test_best_tokens_in_any_order_give_the_first_of_equal_scores() -> None:
    best = BestTokens(mx.array([260, 120, 150]), mx.array([5.0, 5.0, 5.0]), mx.array(9.0))
    assert Sampler(SamplingParams(), V, MLX)(best).token.item() == 120


def test_of_equal_scores_the_first_token_is_taken() -> None:
    scores = mx.zeros((V,))
    scores[mx.array([120, 150, 260])] = 5.0
    assert Sampler(SamplingParams(), V, MLX)(found(scores, 1)).token.item() == 120


@pytest.mark.parametrize(("first", "stop"), [(0, V), (100, 200)])
def test_of_scores_that_are_not_numbers_the_first_token_is_taken(first: int, stop: int) -> None:
    scores = normal((V,), seed=3)
    scores[first:stop] = math.nan
    assert Sampler(SamplingParams(), V, MLX)(found(scores, 1)).token.item() == first


@pytest.mark.parametrize(
    ("change", "num_best"),
    [
        ({}, 1),
        ({"top_logprobs": 7}, 7),
        ({"temperature": 0.5, "top_k": 20}, 20),
        ({"temperature": 0.5, "top_k": 3, "top_logprobs": 7}, 7),
        ({"temperature": 0.5}, None),
        ({"temperature": 0.5, "top_p": 0.9}, None),
        ({"temperature": 0.5, "top_k": V}, None),
        ({"repetition_penalty": 1.1}, None),
        ({"presence_penalty": 0.5}, None),
        ({"logit_bias": {3: 1.0}}, None),
    ],
    ids=str,
)
def test_num_best_follows_from_the_settings(change: dict[str, Any], num_best: int | None) -> None:
    assert Sampler(replace(SamplingParams(), **change), V, MLX).num_best == num_best
