"""Rows that are sampled together get the tokens that their samplers choose alone."""

import random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_ops import MLX, OpSet
from tinyllm_qwen.sampling.best_tokens import BestTokens
from tinyllm_qwen.sampling.params import SamplingParams
from tinyllm_qwen.sampling.sampler import Sampler, choose, with_logprobs

V = 60
PROMPT = [1, 2, 3]


def random_params(draw: random.Random) -> SamplingParams:
    """Draw settings from few values, so that several rows often share them."""
    params = {"seed": draw.randrange(1000), "temperature": draw.choice([0.0, 0.0, 0.7, 1.3])}
    params["top_k"] = draw.choice([0, 0, 5, 5, 12, V, V + 1])
    params["top_p"] = draw.choice([1.0, 1.0, 0.9, 0.5])
    params["min_p"] = draw.choice([0.0, 0.0, 0.05])
    if draw.random() < 0.3:
        params[draw.choice(["presence_penalty", "frequency_penalty"])] = 1.5
    if draw.random() < 0.2:
        params["repetition_penalty"] = 1.3
    if draw.random() < 0.2:
        params["logit_bias"] = {draw.randrange(V): draw.choice([3.0, -float("inf")])}  # type: ignore[assignment]
    return SamplingParams(**params)  # type: ignore[arg-type]


def started(params: SamplingParams) -> Sampler:
    return Sampler(params, V, MLX, PROMPT)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("seed", range(12))
def test_random_mixtures_get_the_tokens_of_single_samplers(seed: int, dtype: mx.Dtype) -> None:
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    settings = [random_params(draw) for _ in range(draw.randrange(1, 14))]
    together, alone = [started(each) for each in settings], [started(each) for each in settings]
    for _ in range(6):
        logits = mx.array(numbers.normal(0.0, 2.0, (len(settings), V))).astype(dtype)
        masks = [
            mx.array(numbers.random(V) < 0.3) if draw.random() < 0.2 else None for _ in settings
        ]
        # A grammar never forbids every token.
        masks = [None if mask is None or not mask.any().item() else mask for mask in masks]
        tokens = choose(together, logits, masks)
        expected = [
            choose([sampler], row[None], [mask])[0]
            for sampler, row, mask in zip(alone, logits, masks, strict=True)
        ]
        assert tokens.tolist() == mx.stack(expected).tolist()
        for sampler, token in zip([*together, *alone], [*expected, *expected], strict=True):
            sampler.advance(token)


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_best_tokens_get_the_tokens_of_all_scores(seed: int) -> None:
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    kinds = [
        {"temperature": 0.0},
        {"temperature": 1.0, "top_k": 5},
        {"temperature": 0.7, "top_k": 5, "top_p": 0.8},
        {"temperature": 0.7, "top_k": 9, "min_p": 0.1},
    ]
    settings = [SamplingParams(seed=row, **draw.choice(kinds)) for row in range(7)]  # type: ignore[arg-type]
    samplers = [started(each) for each in settings]
    logits = mx.array(numbers.normal(0.0, 2.0, (7, V)), dtype=mx.float32)
    best = BestTokens.of(logits, 10, 0, MLX)
    expected = choose(samplers, logits).tolist()
    assert choose(samplers, best).tolist() == expected


def counted(calls: list[str]) -> OpSet:
    """MLX's operations, three of which append their name and number of rows to `calls`."""

    def noted(name: str) -> object:
        function = getattr(MLX, name)

        def call(x: mx.array, *rest: Any) -> object:
            calls.append(f"{name} {x.shape[0]}")
            return function(x, *rest)

        return call

    names = ("argmax", "top_k", "log_probability")
    return MLX.__class__(**{**vars(MLX), **{name: noted(name) for name in names}})


def test_rows_with_the_same_group_key_are_computed_together() -> None:
    calls: list[str] = []
    ops, logits = counted(calls), mx.random.normal((9, V))
    kinds = [{}] * 4 + [{"temperature": 0.5 + 0.1 * row, "top_k": 7} for row in range(3)]  # type: ignore[var-annotated]
    kinds += [{"temperature": 1.0, "top_k": 8}, {"presence_penalty": 1.0}]
    samplers = [Sampler(SamplingParams(**kind), V, ops) for kind in kinds]
    tokens = choose(samplers, logits)
    assert sorted(calls) == ["argmax 1", "argmax 4", "top_k 1", "top_k 3"]
    calls.clear()
    sample = with_logprobs(tokens, logits, 2, ops)
    assert calls == []  # no log-probability was read
    assert sample.logprob.shape == (9,)
    assert calls == ["top_k 9", "log_probability 9"]


@pytest.mark.parametrize("top", [0, 4])
def test_logprobs_of_rows_are_those_of_each_row(top: int) -> None:
    logits = mx.array(np.random.default_rng(1).normal(0.0, 2.0, (5, V)), dtype=mx.float32)
    tokens = mx.array([3, 1, 4, 1, 5], dtype=mx.int32)
    together = with_logprobs(tokens, logits, top, MLX)
    for row in range(5):
        alone = with_logprobs(tokens[row], logits[row], top, MLX)
        assert together.logprob[row].item() == alone.logprob.item()
        assert (alone.top_tokens is None) == (top == 0)
        if alone.top_tokens is not None:
            assert together.top_tokens[row].tolist() == alone.top_tokens.tolist()
            assert together.top_logprobs[row].tolist() == alone.top_logprobs.tolist()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, seed=7),
        SamplingParams(temperature=0.9, seed=8, frequency_penalty=1.5, repetition_penalty=1.4),
        SamplingParams(presence_penalty=2.0),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_samplers_ahead_of_a_draft_choose_as_if_it_had_been_chosen(
    params: SamplingParams, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    logits = mx.array(draw.standard_normal((30, V)), dtype=mx.float32)
    alone = started(params)
    wanted = [int(alone(row).token) for row in logits]
    sampler, given = started(params), []  # type: ignore[var-annotated]
    while len(given) < len(wanted):
        draft = wanted[len(given) : len(given) + int(draw.integers(0, 4))]
        if draft and draw.random() < 0.4:
            draft[-1] = (draft[-1] + 1) % V  # a wrong draft: the token sampled after it is dropped
        rows = logits[len(given) : len(given) + 1 + len(draft)]
        states = sampler.ahead(draft)[: len(rows)]
        chosen = choose(states, rows).tolist()
        kept = []
        for token, assumed in zip(chosen, [*draft, None], strict=False):  # type: ignore[arg-type]
            kept.append(token)
            if token != assumed:
                break
        for token in kept:
            sampler.advance(token)  # type: ignore[arg-type]
        given += kept
    assert given == wanted
