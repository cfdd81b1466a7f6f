import math

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tinyllm_qwen.sampling.candidates import Candidates

# The oracles: each filter as its paper defines it, in float64. A filter returns a set of token ids.


def probabilities(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def ranked(scores: np.ndarray) -> list[int]:
    return sorted(range(len(scores)), key=lambda token: -scores[token])


def best_k(scores: np.ndarray, k: int) -> set[int]:
    return set(ranked(scores)[:k])


def at_least_p_of_best(scores: np.ndarray, p: float) -> set[int]:
    likelihood = probabilities(scores)
    return {token for token in range(len(scores)) if likelihood[token] >= p * likelihood.max()}


def nucleus(scores: np.ndarray, p: float) -> set[int]:
    likelihood = probabilities(scores)
    mass, kept = 0.0, set()
    for token in ranked(scores):
        kept.add(token)
        mass += likelihood[token]
        if mass >= p:
            break
    return kept


def candidates(scores: np.ndarray | list[float]) -> Candidates:
    row = mx.array(np.asarray(scores, dtype=np.float32))
    return Candidates(mx.arange(row.size, dtype=mx.int32)[None], row[None])


def kept(left: Candidates) -> set[int]:
    tokens, scores = np.array(left.tokens), np.array(left.scores)
    return set(tokens[scores > -np.inf].tolist())


def drawn(left: Candidates, keys: mx.array) -> np.ndarray:
    """Draw a token of one row of candidates with each key."""
    assert left.tokens is not None
    shape = (len(keys), left.scores.shape[1])
    rows = (mx.broadcast_to(x, shape) for x in (left.tokens, left.scores))
    return np.array(Candidates(*rows).draw(keys))


@st.composite
def separated_scores(draw: st.DrawFn) -> np.ndarray:
    """Scores in random order, no two closer than 0.02, exact in float32."""
    size = draw(st.integers(1, 300))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    gaps = rng.uniform(0.02, draw(st.sampled_from([0.03, 0.3, 3.0])), size)
    scores = np.cumsum(gaps) + draw(st.sampled_from([-100.0, 0.0, 50.0]))
    return rng.permutation(scores).astype(np.float32).astype(np.float64)


unit_interval = st.floats(1e-6, 1.0 - 1e-6)


@given(separated_scores(), st.integers(1, 400))
def test_top_k_keeps_the_k_best(scores: np.ndarray, k: int) -> None:
    assert kept(candidates(scores).top_k(k)) == best_k(scores, k)


@given(separated_scores(), unit_interval)
def test_min_p_keeps_tokens_with_a_share_of_the_best_probability(
    scores: np.ndarray, p: float
) -> None:
    assume(np.abs(scores - scores.max() - math.log(p)).min() > 1e-4)
    assert kept(candidates(scores).min_p([p])) == at_least_p_of_best(scores, p)


@given(separated_scores(), unit_interval)
def test_top_p_keeps_the_smallest_set_that_reaches_p(scores: np.ndarray, p: float) -> None:
    mass = np.cumsum(np.sort(probabilities(scores))[::-1])
    assume(np.abs(mass - p).min() > 1e-5)
    assert kept(candidates(scores).top_p([p])) == nucleus(scores, p)


@given(separated_scores(), st.integers(1, 40), st.floats(0.01, 1.0), unit_interval)
@settings(max_examples=200)
def test_top_p_counts_the_mass_that_the_other_filters_left(
    scores: np.ndarray, k: int, min_p: float, top_p: float
) -> None:
    assume(np.abs(scores - scores.max() - math.log(min_p)).min() > 1e-4)
    left = sorted(at_least_p_of_best(scores, min_p) & best_k(scores, k))
    mass = np.cumsum(np.sort(probabilities(scores[left]))[::-1])
    assume(np.abs(mass - top_p).min() > 1e-5)
    expected = {left[i] for i in nucleus(scores[left], top_p)}
    assert kept(candidates(scores).top_k(k).min_p([min_p]).top_p([top_p])) == expected
    assert kept(candidates(scores).min_p([min_p]).top_k(k).top_p([top_p])) == expected


@given(separated_scores(), st.integers(1, 40), st.floats(0.0, 1.0), unit_interval)
def test_a_kept_token_keeps_its_score(
    scores: np.ndarray, k: int, min_p: float, top_p: float
) -> None:
    left = candidates(scores).top_k(k).min_p([min_p]).top_p([top_p])
    for token, score in zip(np.array(left.tokens)[0], np.array(left.scores)[0], strict=True):
        assert score in (scores[token], -math.inf)


def test_the_token_that_crosses_p_is_kept() -> None:
    halves = np.log([0.5, 0.25, 0.125, 0.125])
    assert kept(candidates(halves).top_p([0.6])) == {0, 1}


def test_no_token_is_added_to_a_set_that_reaches_p_exactly() -> None:
    assert len(kept(candidates([0.0] * 4).top_p([0.5]))) == 2


@pytest.mark.parametrize("p", [1e-300, 1e-30, 1e-6, 0.05])
def test_a_tiny_p_keeps_one_token_of_many_that_tie(p: float) -> None:
    assert len(kept(candidates([2.0] * 10).top_p([p]))) == 1


def test_ties_are_cut_to_the_size_that_was_asked_for() -> None:
    level = candidates([1.0] * 10)
    assert len(kept(level.top_k(3))) == 3
    assert len(kept(level.top_p([0.45]))) == 5
    assert kept(level.min_p([1.0])) == set(range(10))


@pytest.mark.parametrize("k", [3, 4, 10**6])
def test_top_k_of_the_vocabulary_or_more_keeps_it_all(k: int) -> None:
    assert kept(candidates([0.0, 1.0, 2.0]).top_k(k)) == {0, 1, 2}


@pytest.mark.parametrize("scores", [[-1e4, 1e4, 9999.0], [-math.inf, 0.0, -1.0]])
def test_extreme_scores_are_filtered_like_any_others(scores: np.ndarray) -> None:
    expected = {1, 2}
    assert kept(candidates(scores).top_k(2)) == expected
    assert kept(candidates(scores).min_p([0.3])) == expected
    assert kept(candidates(scores).top_p([0.9])) == expected


@pytest.mark.parametrize("size", [1, 5])
def test_when_one_token_is_left_it_is_drawn_every_time(size: int) -> None:
    scores = [-math.inf] * (size - 1) + [-7.0]
    draws = drawn(candidates(scores), mx.random.split(mx.random.key(0), 200))
    assert set(draws.tolist()) == {size - 1}


def chi_square_excess(counts: np.ndarray, probability: np.ndarray) -> float:
    """Chi-square divided by its 99.9 percent point (Wilson and Hilferty). Above 1 is a misfit."""
    possible = probability > 0
    expected = counts.sum() * probability[possible]
    chi_square = ((counts[possible] - expected) ** 2 / expected).sum()
    spread = 2 / (9 * (possible.sum() - 1))
    return chi_square / ((possible.sum() - 1) * (1 - spread + 3.09 * math.sqrt(spread)) ** 3)


@pytest.mark.parametrize(
    ("k", "min_p", "top_p"),
    [(12, 0.0, 1.0), (5, 0.0, 1.0), (12, 0.1, 1.0), (12, 0.0, 0.7), (8, 0.05, 0.85)],
)
def test_twenty_thousand_draws_fit_the_exact_distribution(
    k: int, min_p: float, top_p: float
) -> None:
    scores = np.random.default_rng(7).normal(0.0, 1.0, 12).astype(np.float32).astype(np.float64)
    left = sorted(best_k(scores, k) & at_least_p_of_best(scores, min_p))
    left = [left[i] for i in nucleus(scores[left], top_p)]

    def exact(temperature: float) -> np.ndarray:
        result = np.zeros(12)
        result[left] = probabilities(scores[left] / temperature)
        return result

    filtered = candidates(scores).top_k(k).min_p([min_p]).top_p([top_p])
    tokens = drawn(filtered, mx.random.split(mx.random.key(1), 20_000))
    counts = np.bincount(tokens, minlength=12)
    assert counts[exact(1.0) == 0].sum() == 0
    assert chi_square_excess(counts, exact(1.0)) < 1
    # The same draws do not fit a distribution 10 percent warmer: the test has power.
    assert chi_square_excess(counts, exact(1.1)) > 1


def test_qwens_vocabulary_is_filtered_exactly() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(0, 3, 151_936).astype(np.float32).astype(np.float64)
    mass = np.cumsum(np.sort(probabilities(scores))[::-1])
    p = float(mass[1000] + mass[1001]) / 2
    assert kept(candidates(scores).top_p([p])) == nucleus(scores, p)
    p = float(mass[30_000] + mass[30_001]) / 2
    assert len(kept(candidates(scores).top_p([p])) ^ nucleus(scores, p)) < 10
    assert kept(candidates(scores).top_k(20)) == best_k(scores, 20)


@pytest.mark.parametrize("infinite", [0, 1, 2])
def test_top_p_keeps_a_best_token_whose_score_is_infinite(infinite: int) -> None:
    scores = mx.array([[1.0, 2.0, 3.0]])
    scores[0, infinite] = math.inf
    kept = Candidates(None, scores).top_p([0.9])
    assert kept.draw(mx.random.key(0)[None]).item() == infinite
