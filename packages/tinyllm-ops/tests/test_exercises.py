"""The checks of the exercises accept right solutions, and explain wrong ones."""

import math
import re
from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_ops import (
    causal_mask,
    rms_norm,
    scaled_dot_product_attention_grouped,
    scaled_dot_product_attention_simple,
    softmax,
)
from tinyllm_ops.testing import exercises, oracle

Solution = Callable[..., object]
Grader = Callable[..., str]


def attention(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    mask = causal_mask(len(q), len(k))
    return scaled_dot_product_attention_simple(q, k, v, mask=mask)


def attention_without_scale(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    return scaled_dot_product_attention_simple(q, k, v, 1.0, causal_mask(len(q), len(k)))


def attention_masked_from_the_left(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    mask = mx.arange(len(k)) <= mx.arange(len(q))[:, None]
    return scaled_dot_product_attention_simple(q, k, v, mask=mask)


def attention_without_maximum(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    scores = mx.exp(q @ k.T / math.sqrt(q.shape[1]) + causal_mask(len(q), len(k), q.dtype))
    return scores / scores.sum(axis=-1, keepdims=True) @ v


def attention_hiding_with(score: float, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    visible = causal_mask(len(q), len(k)) == 0
    scores = mx.where(visible, q @ k.T / math.sqrt(q.shape[1]), score)
    return mx.softmax(scores, axis=-1) @ v


def attention_with_a_finite_mask(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    return attention_hiding_with(-100.0, q, k, v)


def attention_with_a_summand(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    hidden = causal_mask(len(q), len(k)) != 0
    return mx.softmax(q @ k.T / math.sqrt(q.shape[1]) - 100 * hidden, axis=-1) @ v


def attention_without_its_own_key(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    visible = mx.arange(len(k)) < (mx.arange(len(q)) + len(k) - len(q))[:, None]
    scores = mx.where(visible, q @ k.T / math.sqrt(q.shape[1]), -mx.inf)
    return mx.softmax(scores, axis=-1) @ v


def attention_with_minus_a_billion(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    q, k, wide = (each.astype(mx.float32) for each in (q, k, v))
    return attention_hiding_with(-1e9, q, k, wide).astype(v.dtype)


def attention_in_float32(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    return attention(*(each.astype(mx.float32) for each in (q, k, v)))


def attention_scaling_in_place(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    q *= mx.array(1 / math.sqrt(q.shape[1]))  # float32, and so is q from here on
    scores = mx.where(causal_mask(len(q), len(k)) == 0, q @ k.T, -mx.inf)
    return mx.softmax(scores, axis=-1) @ v.astype(q.dtype)


def grouped_attention(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    return scaled_dot_product_attention_grouped(q[:, None], k, v)[:, 0]


def grouped_by_remainder(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    heads = mx.arange(len(q)) % len(k)
    return scaled_dot_product_attention_simple(q[:, None], k[heads], v[heads])[:, 0]


def grouped_with_scale_of_64(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    return scaled_dot_product_attention_grouped(q[:, None], k, v, 0.125)[:, 0]


def grouped_without_maximum(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    groups = q.reshape(len(k), -1, q.shape[1])
    weights = softmax_without_maximum(groups @ k.swapaxes(1, 2) / math.sqrt(q.shape[1]))
    return (weights @ v).reshape(q.shape)


def norm_in_dtype(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    return x * mx.rsqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def norm_with_eps_outside(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    wide = x.astype(mx.float32)
    root = mx.sqrt((wide * wide).mean(axis=-1, keepdims=True)) + eps
    return (wide / root).astype(x.dtype) * weight


def norm_of_all_rows(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    wide = x.astype(mx.float32)
    return (wide * mx.rsqrt((wide * wide).mean() + eps)).astype(x.dtype) * weight


def norm_with_eps_of_qwen(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    return rms_norm(x, weight, 1e-6)


def norm_of_256(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    wide = x.astype(mx.float32)
    mean = (wide * wide).sum(axis=-1, keepdims=True) / 256
    return (wide * mx.rsqrt(mean + eps)).astype(x.dtype) * weight


def norm_without_weight(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    return rms_norm(x, mx.ones_like(weight), eps)


def norm_in_place(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    wide = x.astype(mx.float32)
    x *= mx.rsqrt((wide * wide).mean(axis=-1, keepdims=True) + eps).astype(x.dtype)
    x *= weight
    return x


def norm_in_place_of_another_dtype(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    wide = x.astype(mx.float32)
    x /= mx.sqrt((wide * wide).mean(axis=-1, keepdims=True) + eps)
    return x * weight if x.dtype == weight.dtype else (x * weight).astype(x.dtype)


def top_p(scores: list[float], p: float) -> set[int]:
    total, kept = 0.0, set()
    probability = [float(each) for each in oracle.softmax(np.array(scores))]
    for token in sorted(range(len(scores)), key=lambda token: -probability[token]):
        if total >= p - 1e-6:
            break
        kept.add(token)
        total += probability[token]
    return kept


def top_p_below(scores: list[float], p: float) -> set[int]:
    total, kept = 0.0, set()
    probability = [float(each) for each in oracle.softmax(np.array(scores))]
    for token in sorted(range(len(scores)), key=lambda token: -probability[token]):
        total += probability[token]
        if total > p + 1e-6:
            break
        kept.add(token)
    return kept


def top_p_of_all(scores: list[float], p: float) -> set[int]:
    return set(range(len(scores))) if p == 1 else top_p(scores, p)


def top_p_of_other_ids(scores: list[float], p: float) -> set[object]:
    return {99, "a"} if len(set(scores)) == 1 else set(top_p(scores, p))


def top_p_of_ranks(scores: list[float], p: float) -> set[int]:
    return set(range(len(top_p(scores, p))))


def top_p_overflowing(scores: list[float], p: float) -> set[int]:
    total = sum(math.exp(score) for score in scores)
    return top_p([math.log(math.exp(s) / total) if s > -100 else s for s in scores], p)


def quantize_group(numbers: list[float]) -> tuple[list[int], float, float]:
    scale = (max(numbers) - min(numbers)) / 15 or 1.0
    return [round((number - min(numbers)) / scale) for number in numbers], scale, min(numbers)


def quantize_truncating(numbers: list[float]) -> tuple[list[int], float, float]:
    scale = (max(numbers) - min(numbers)) / 15 or 1.0
    return [int((number - min(numbers)) / scale) for number in numbers], scale, min(numbers)


def quantize_in_16_steps(numbers: list[float]) -> tuple[list[int], float, float]:
    scale = (max(numbers) - min(numbers)) / 16 or 1.0
    return [round((number - min(numbers)) / scale) for number in numbers], scale, min(numbers)


def quantize_unrounded(numbers: list[float]) -> tuple[list[float], float, float]:
    scale = (max(numbers) - min(numbers)) / 15 or 1.0
    return [(number - min(numbers)) / scale for number in numbers], scale, min(numbers)


def quantize_dividing_by_zero(numbers: list[float]) -> tuple[list[int], float, float]:
    scale = (max(numbers) - min(numbers)) / 15
    return [round((number - min(numbers)) / scale) for number in numbers], scale, min(numbers)


def quantize_to_nan(numbers: list[float]) -> tuple[list[float], float, float]:
    scale = (max(numbers) - min(numbers)) / 15
    divided = [(x - min(numbers)) / scale if scale else math.nan for x in numbers]
    return [x if math.isnan(x) else round(x) for x in divided], scale, min(numbers)


def paged_attention(
    q: mx.array, k: mx.array, v: mx.array, block_table: list[int], seq_len: int
) -> mx.array:
    keys, values = (x[mx.array(block_table)].reshape(-1, len(q))[:seq_len] for x in (k, v))
    return scaled_dot_product_attention_simple(q[None], keys, values)[0]


def paged_in_order_of_numbers(
    q: mx.array, k: mx.array, v: mx.array, block_table: list[int], seq_len: int
) -> mx.array:
    return paged_attention(q, k, v, sorted(block_table), seq_len)


def paged_in_whole_pages(
    q: mx.array, k: mx.array, v: mx.array, block_table: list[int], seq_len: int
) -> mx.array:
    return paged_attention(q, k, v, block_table, len(block_table) * k.shape[1])


def scores_and_values(
    q: mx.array, k: mx.array, v: mx.array, block_table: list[int], seq_len: int
) -> tuple[mx.array, mx.array]:
    keys, values = (x[mx.array(block_table)].reshape(-1, len(q))[:seq_len] for x in (k, v))
    return keys @ q, values


def paged_without_scale(
    q: mx.array, k: mx.array, v: mx.array, block_table: list[int], seq_len: int
) -> mx.array:
    scores, values = scores_and_values(q, k, v, block_table, seq_len)
    return softmax(scores) @ values


def paged_with_scale_of_64(
    q: mx.array, k: mx.array, v: mx.array, block_table: list[int], seq_len: int
) -> mx.array:
    scores, values = scores_and_values(q, k, v, block_table, seq_len)
    return softmax(scores / 8) @ values


def paged_without_maximum(
    q: mx.array, k: mx.array, v: mx.array, block_table: list[int], seq_len: int
) -> mx.array:
    scores, values = scores_and_values(q, k, v, block_table, seq_len)
    return softmax_without_maximum(scores / math.sqrt(len(q))) @ values


def paged_emptying_the_table(
    q: mx.array, k: mx.array, v: mx.array, block_table: list[int], seq_len: int
) -> mx.array:
    pages = [block_table.pop(0) for _ in range(-(-seq_len // k.shape[1]))]
    return paged_attention(q, k, v, pages, seq_len)


def accept(draft: list[int], choices: list[int]) -> list[int]:
    right = [guess == choice for guess, choice in zip(draft, choices, strict=False)]
    return choices[: [*right, False].index(False) + 1]


def accept_all_matches(draft: list[int], choices: list[int]) -> list[int]:
    return [d for d, c in zip(draft, choices, strict=False) if d == c] + choices[-1:]


def accept_draft_alone(draft: list[int], choices: list[int]) -> list[int]:
    return accept(draft, choices)[:-1]


def softmax_without_maximum(x: mx.array) -> mx.array:
    return mx.exp(x) / mx.exp(x).sum(axis=-1, keepdims=True)


RIGHT: list[tuple[Grader, Solution]] = [
    (exercises.grade_attention, attention),
    (exercises.grade_attention, attention_with_minus_a_billion),
    (exercises.grade_grouped_attention, grouped_attention),
    (exercises.grade_rms_norm, rms_norm),
    (exercises.grade_top_p, top_p),
    (exercises.grade_quantize_group, quantize_group),
    (exercises.grade_paged_attention, paged_attention),
    (exercises.grade_accept, accept),
    (exercises.grade_softmax_rows, softmax),
]
WRONG: list[tuple[Grader, Solution, str]] = [
    (exercises.grade_attention, attention_without_scale, "5 keys.*hint: divide the scores by"),
    (exercises.grade_attention, attention_masked_from_the_left, "hint: divide|hint: query i"),
    (exercises.grade_attention, attention_without_maximum, "large scores.*hint: subtract"),
    (exercises.grade_attention, attention_with_a_finite_mask, "large scores.*later keys with -inf"),
    (exercises.grade_attention, attention_with_a_summand, "large scores.*later keys with -inf"),
    (exercises.grade_attention, attention_without_its_own_key, "a query sees its own key"),
    (exercises.grade_attention, attention_in_float32, "float16\nexpected dtype mlx.core.float16"),
    (exercises.grade_attention, lambda q, k, v: 0, "expected an mx.array, got int.*return"),
    (exercises.grade_attention, lambda q, k, v: v[:0], r"expected shape \(1, 8\), got \(0, 8\)"),
    (exercises.grade_attention, lambda q, k, v: None, "expected an mx.array, got None"),
    (exercises.grade_attention, attention_scaling_in_place, r"argument q\n.*write `q = q \*"),
    (exercises.grade_grouped_attention, lambda q, k, v: v[:, 0], "hint: divide the scores by"),
    (exercises.grade_grouped_attention, grouped_by_remainder, "H = 4, Hkv = 2.*hint: query head"),
    (exercises.grade_grouped_attention, grouped_with_scale_of_64, r"D = 32\n.*by sqrt\(D\)"),
    (exercises.grade_grouped_attention, grouped_without_maximum, "large scores.*hint: subtract"),
    (exercises.grade_rms_norm, norm_with_eps_of_qwen, "eps = 0.001.*hint: eps is the argument"),
    (exercises.grade_rms_norm, norm_of_256, "rows of 64.*the width of a row is x.shape"),
    (exercises.grade_rms_norm, norm_without_weight, "one row.*then multiply by weight"),
    (exercises.grade_rms_norm, norm_in_dtype, "float16.*hint: float16 ends"),
    (exercises.grade_rms_norm, norm_with_eps_outside, "0.0001.*hint: add eps to the mean"),
    (exercises.grade_rms_norm, norm_of_all_rows, "2 x 3 rows.*hint: divide each row, along"),
    (exercises.grade_rms_norm, norm_in_place, r"argument x\n.*write `x = x \*"),
    (exercises.grade_rms_norm, norm_in_place_of_another_dtype, "changed its argument x"),
    (exercises.grade_top_p, lambda scores, p: sorted(top_p(scores, p)), "a set, got list"),
    (exercises.grade_top_p, top_p_below, "p = 0.6.*hint: keep the best tokens"),
    (exercises.grade_top_p, top_p_of_all, "p = 1, a token.*hint: a banned token has the prob"),
    (exercises.grade_top_p, top_p_of_other_ids, "expected 2 of the 4 equal tokens, got {.*99"),
    (exercises.grade_top_p, top_p_of_ranks, "hint: (sort by score|keep the best)"),
    (exercises.grade_quantize_group, quantize_truncating, r"got -?\d+\.\d+\nhint: a code is"),
    (exercises.grade_quantize_group, quantize_to_nan, "equal numbers.*do not divide by it"),
    (exercises.grade_quantize_group, quantize_in_16_steps, "expected codes from 0 to 15, got 0 to"),
    (exercises.grade_quantize_group, quantize_unrounded, "expected 64 integers"),
    (exercises.grade_quantize_group, lambda numbers: 0, "expected a tuple of three, got int"),
    (exercises.grade_paged_attention, paged_in_order_of_numbers, "of one key.*block_table"),
    (exercises.grade_paged_attention, paged_in_whole_pages, "of one key.*hint: slots from seq"),
    (exercises.grade_paged_attention, paged_without_scale, "full page.*hint: divide the scores"),
    (exercises.grade_paged_attention, paged_with_scale_of_64, r"D = 32\n.*by sqrt\(D\)"),
    (exercises.grade_paged_attention, paged_without_maximum, "large scores.*hint: subtract"),
    (exercises.grade_paged_attention, paged_emptying_the_table, r"list\(block_table\)"),
    (exercises.grade_accept, accept_all_matches, "accepted.*hint: after the first draft token"),
    (exercises.grade_accept, lambda draft, choices: None, "expected a list, got None"),
    (exercises.grade_accept, accept_draft_alone, "no draft.*hint: the choice after the last"),
    (exercises.grade_softmax_rows, softmax_without_maximum, "large scores.*hint: reduce"),
]


def name(case: Sequence[object]) -> str:
    return getattr(case[1], "__name__", "")


@pytest.mark.parametrize("case", RIGHT, ids=name)
def test_a_right_solution_passes(case: tuple[Grader, Solution]) -> None:
    grade, solution = case
    assert re.fullmatch(r"\w+: all \d+ cases pass", grade(solution))


@pytest.mark.parametrize("case", WRONG, ids=name)
def test_a_wrong_solution_fails_with_a_hint(case: tuple[Grader, Solution, str]) -> None:
    grade, solution, message = case
    with pytest.raises(exercises.ExerciseError) as caught:
        grade(solution)
    assert re.search(message, str(caught.value), re.DOTALL), caught.value


def test_every_grader_has_a_right_and_a_wrong_solution() -> None:
    graders = {each for each in exercises.__all__ if each.startswith("grade_")}
    assert {case[0].__name__ for case in RIGHT} == graders
    assert {case[0].__name__ for case in WRONG} == graders


def test_an_exception_names_the_case() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        exercises.grade_quantize_group(quantize_dividing_by_zero)
    assert caught.value.__notes__ == ["raised by your function in the case: equal numbers"]
    with pytest.raises(OverflowError) as overflow:
        exercises.grade_top_p(top_p_overflowing)
    assert overflow.value.__notes__ == ["raised by your function in the case: scores of 1,000"]


def test_ctrl_c_in_an_endless_loop_names_the_case() -> None:
    def accept_endlessly(draft: list[int], choices: list[int]) -> list[int]:
        if draft == choices[:-1] and draft:
            raise KeyboardInterrupt
        return accept(draft, choices)

    with pytest.raises(KeyboardInterrupt) as caught:
        exercises.grade_accept(accept_endlessly)
    assert caught.value.__notes__ == ["raised by your function in the case: all accepted"]
