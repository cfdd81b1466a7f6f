"""tinyllm's sampling compared with mlx-lm's, where both define it in the same way.

The definitions agree for a single filter at temperature 1, and for each penalty over the same
tokens. They differ for several filters: mlx-lm applies top-p, min-p, top-k and then the
temperature. tinyllm applies the temperature, min-p, top-k and then top-p, as vLLM does.
"""

import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import sample_utils
from tinyllm_qwen.sampling.candidates import Candidates
from tinyllm_qwen.sampling.params import SamplingParams
from tinyllm_qwen.sampling.penalties import Penalties
from tinyllm_qwen.sampling.sampler import Sampler

V = 2000
SEEDS = range(5)


def random_logits(seed: int, size: int = V) -> mx.array:
    # Well separated, so that neither side meets a tie or a threshold within rounding.
    rng = np.random.default_rng(seed)
    values = np.sort(rng.normal(0.0, 3.0, size)) + 1e-3 * np.arange(size)
    return mx.array(rng.permutation(values).astype(np.float32))


def logprobs_of(logits: mx.array) -> mx.array:
    return logits - mx.logsumexp(logits)


def kept_by_mlx_lm(logprobs: mx.array) -> set[int]:
    return set(np.flatnonzero(np.array(logprobs) > -math.inf).tolist())


def kept(left: Candidates) -> set[int]:
    return set(np.array(left.tokens)[np.array(left.scores) > -math.inf].tolist())


def candidates(logits: mx.array) -> Candidates:
    return Candidates(mx.arange(logits.size, dtype=mx.int32)[None], logits[None])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("k", [1, 20, V - 1])
def test_top_k_keeps_what_mlx_lm_keeps(seed: int, k: int) -> None:
    logits = random_logits(seed)
    expected = kept_by_mlx_lm(sample_utils.apply_top_k(logprobs_of(logits)[None], k)[0])
    assert kept(candidates(logits).top_k(k)) == expected


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("p", [0.01, 0.3, 0.8, 0.95])
def test_top_p_keeps_what_mlx_lm_keeps(seed: int, p: float) -> None:
    logits = random_logits(seed)
    expected = kept_by_mlx_lm(sample_utils.apply_top_p(logprobs_of(logits)[None], p)[0])
    assert kept(candidates(logits).top_p([p])) == expected


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("p", [0.001, 0.05, 0.5, 1.0])
def test_min_p_keeps_what_mlx_lm_keeps(seed: int, p: float) -> None:
    logits = random_logits(seed)
    expected = kept_by_mlx_lm(sample_utils.apply_min_p(logprobs_of(logits)[None], p)[0])
    assert kept(candidates(logits).min_p([p])) == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_repetition_over_prompt_and_output_matches_mlx_lm(seed: int) -> None:
    rng = np.random.default_rng(seed)
    prompt, output = rng.integers(0, V, 50).tolist(), rng.integers(0, V, 30).tolist()
    penalties = Penalties(SamplingParams(repetition_penalty=1.3), V, prompt)
    for token in output:
        penalties.record(mx.array(token, dtype=mx.int32))
    logits = random_logits(seed)
    process = sample_utils.make_repetition_penalty(1.3, context_size=80)
    # mlx-lm writes into the logits that it is given.
    expected = process(prompt + output, mx.array(logits)[None])[0]
    np.testing.assert_allclose(np.array(penalties(logits)), np.array(expected), rtol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("setting", "make"),
    [
        ("presence_penalty", sample_utils.make_presence_penalty),
        ("frequency_penalty", sample_utils.make_frequency_penalty),
    ],
)
def test_the_penalties_on_output_match_mlx_lm(seed: int, setting: str, make: Any) -> None:
    output = np.random.default_rng(seed).integers(0, 40, 60).tolist()
    penalties = Penalties(SamplingParams(**{setting: 0.7}), V)  # type: ignore[arg-type]
    for token in output:
        penalties.record(mx.array(token, dtype=mx.int32))
    logits = random_logits(seed)
    expected = make(0.7, context_size=60)(mx.array(output), mx.array(logits)[None])[0]
    np.testing.assert_allclose(np.array(penalties(logits)), np.array(expected), atol=1e-5)


def test_greedy_with_penalties_and_bias_gives_mlx_lms_tokens() -> None:
    size, length, bias = 20, 64, {3: 1.5, 7: -math.inf}
    params = SamplingParams(
        logit_bias=bias, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.4
    )
    sampler = Sampler(params, size)
    process = sample_utils.make_logits_processors(
        bias, 1.2, length, 0.3, length, frequency_penalty=0.4, frequency_context_size=length
    )
    logits, theirs, ours = random_logits(0, size), [], []  # type: ignore[var-annotated]
    for _ in range(length):
        row = mx.array(logits)[None]
        for processor in process:
            row = processor(mx.array(theirs, dtype=mx.int32) if theirs else theirs, row)
        theirs.append(mx.argmax(row[0]).item())
        ours.append(sampler(logits).token.item())
    assert ours == theirs
    assert len(set(ours)) < length
