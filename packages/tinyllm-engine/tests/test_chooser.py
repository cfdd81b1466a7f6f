import mlx.core as mx
import numpy as np
import pytest
from tinyllm_engine.chooser import Chooser
from tinyllm_qwen import Sampler, SamplingParams

V = 40


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, seed=7),
        SamplingParams(temperature=0.9, seed=8, frequency_penalty=1.5, repetition_penalty=1.4),
        SamplingParams(presence_penalty=2.0),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_drafts_change_how_soon_a_token_comes_and_never_which_one(
    params: SamplingParams, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    logits = mx.array(draw.standard_normal((30, V)), dtype=mx.float32)
    sampler = Sampler(params, V)
    sampler.start(mx.array([1, 2]))
    wanted = [int(sampler(row).token) for row in logits]

    chooser, given = Chooser(params, V, [1, 2]), []
    while len(given) < len(wanted):
        ahead = int(draw.integers(1, 5))
        rows = logits[len(given) : len(given) + ahead]
        chosen = [int(sample.token) for sample in chooser.choose(rows)]
        kept = int(draw.integers(1, len(chosen) + 1))
        chooser.keep(chosen[:kept])
        given += chosen[:kept]
    assert given == wanted
