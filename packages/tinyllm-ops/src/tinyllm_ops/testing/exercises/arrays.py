"""Exercises whose results are arrays: attention, RMSNorm, pages, and a softmax kernel."""

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np

from tinyllm_ops.testing import oracle
from tinyllm_ops.testing.arrays import exact, normal
from tinyllm_ops.testing.exercises.case import ArrayCase, check_arrays

_ROUND_ONCE = "compute in float32 and round the result once"
_WIDTH = "D is the length of a query, 32 here: divide the scores by sqrt(D)"
_LARGE = "subtract the largest score of a row before exp, which overflows from 89 on"


def grade_attention(solution: Callable[[mx.array, mx.array, mx.array], mx.array]) -> str:
    """Grade `attention(q, k, v)`: causal attention of one head, scaled by 1/sqrt(D).

    The shapes are q `L D`, k and v `S D`. The L queries are the last of the S tokens.

    Raises:
        ExerciseError: if a result is wrong.
    """
    shape_hint = (
        "q k^T has the shape L S, softmax runs along its last axis, and a query sees its own key"
    )
    mask_hint = "query i is token i + (S - L), and sees the keys 0 to i + (S - L)"
    large_hint = f"{_LARGE}; hide later keys with -inf, because visible scores may be -400"
    one_hint = "divide the scores by sqrt(D); the query is the last token, and sees all keys"
    return check_arrays(
        "attention",
        solution,
        [
            _attention_case("one query and one key", 1, 1, 8, shape_hint),
            _attention_case("one query, 5 keys", 1, 5, 8, one_hint),
            _attention_case("4 queries, 4 keys", 4, 4, 64, mask_hint),
            _attention_case("3 queries, 8 keys", 3, 8, 64, mask_hint),
            _attention_case("large scores", 4, 6, 64, large_hint, magnitude=100.0),
            _attention_case("float16", 5, 9, 64, _ROUND_ONCE, dtype=mx.float16),
            _attention_case("bfloat16", 5, 9, 64, _ROUND_ONCE, dtype=mx.bfloat16),
        ],
    )


def _attention_case(
    name: str,
    length: int,
    keys: int,
    dim: int,
    hint: str,
    *,
    dtype: mx.Dtype = mx.float32,
    magnitude: float = 1.0,
) -> ArrayCase:
    q = normal((length, dim), dtype, seed=1, magnitude=magnitude)
    k, v = normal((keys, dim), dtype, seed=2), normal((keys, dim), dtype, seed=3)
    if magnitude > 1:
        q, k = mx.round(q), mx.round(k)  # see `_scored`
        # Query 0 has scores of about -400 for the keys that it sees, far below its hidden scores.
        q[0] = -50 * k[: keys - length + 1].sum(axis=0)
    mask = oracle.causal_mask(length, keys)
    expected = oracle.attention_simple(exact(q), exact(k), exact(v), mask=mask)
    return ArrayCase(name, {"q": q, "k": k, "v": v}, expected, hint)


def _scored(
    q_shape: Sequence[int], k_shape: Sequence[int], magnitude: float, seeds: tuple[int, int]
) -> tuple[mx.array, mx.array]:
    """Return queries and keys whose scores have about this magnitude.

    Large ones are integers. float32 rounds a score of 500 by more than the tolerance otherwise.
    """
    q, k = normal(q_shape, seed=seeds[0], magnitude=magnitude), normal(k_shape, seed=seeds[1])
    return (mx.round(q), mx.round(k)) if magnitude > 1 else (q, k)


def grade_grouped_attention(
    solution: Callable[[mx.array, mx.array, mx.array], mx.array],
) -> str:
    """Grade `grouped_attention(q, k, v)`: one token of H heads over S keys of Hkv heads.

    The shapes are q `H D`, k and v `Hkv S D`. The token sees all keys. The scale is 1/sqrt(D).

    Raises:
        ExerciseError: if a result is wrong.
    """
    scores = "divide the scores by sqrt(D), and take softmax over the S keys"
    heads_hint = "query head h reads key/value head h // (H / Hkv): neighboring heads share"
    cases = []
    for name, heads, kv_heads, keys, dim, magnitude, hint in (
        ("H = 4, Hkv = 4, S = 5", 4, 4, 5, 64, 1.0, scores),
        ("H = 4, Hkv = 2, S = 7", 4, 2, 7, 64, 1.0, heads_hint),
        ("H = 4, Hkv = 1, S = 7", 4, 1, 7, 64, 1.0, heads_hint),
        ("H = 6, Hkv = 2, S = 1", 6, 2, 1, 64, 1.0, heads_hint),
        ("H = 16, Hkv = 8, S = 33", 16, 8, 33, 64, 1.0, heads_hint),
        ("D = 32", 4, 2, 7, 32, 1.0, _WIDTH),
        ("large scores", 4, 2, 7, 64, 100.0, _LARGE),
    ):
        q, k = _scored((heads, dim), (kv_heads, keys, dim), magnitude, seeds=(heads, 2))
        v = normal((kv_heads, keys, dim), seed=3)
        expected = oracle.attention(exact(q)[:, None], exact(k), exact(v))[:, 0]
        cases.append(ArrayCase(name, {"q": q, "k": k, "v": v}, expected, hint))
    return check_arrays("grouped_attention", solution, cases)


def grade_rms_norm(solution: Callable[[mx.array, mx.array, float], mx.array]) -> str:
    """Grade `rms_norm(x, weight, eps)`: x / sqrt(mean(x^2) + eps) * weight for each row.

    x has any leading axes. The result has the dtype of x.

    Raises:
        ExerciseError: if a result is wrong.
    """
    rows = (
        "divide each row, along the last axis, by the root of the mean of its squares, "
        "then multiply by weight"
    )
    wide = "float16 ends at 65,504: use float32 for squares"
    tiny = "add eps to the mean of the squares, before the square root"
    given = "eps is the argument, and the width of a row is x.shape[-1]"
    cases = []
    for name, shape, dtype, magnitude, eps, hint in (
        ("one row", (256,), mx.float32, 1.0, 1e-6, rows),
        ("2 x 3 rows", (2, 3, 256), mx.float32, 1.0, 1e-6, rows),
        ("numbers around 0.0001", (3, 256), mx.float32, 1e-4, 1e-6, tiny),
        ("rows of 64, eps = 0.001", (3, 64), mx.float32, 0.01, 1e-3, given),
        ("float16", (3, 256), mx.float16, 1.0, 1e-6, _ROUND_ONCE),
        ("float16, numbers around 300", (3, 256), mx.float16, 300.0, 1e-6, wide),
        ("bfloat16", (3, 256), mx.bfloat16, 1.0, 1e-6, _ROUND_ONCE),
    ):
        x = normal(shape, dtype, seed=4, magnitude=magnitude)
        weight = normal(shape[-1:], dtype, seed=5)
        expected = oracle.rms_norm(exact(x), exact(weight), eps)
        arguments = {"x": x, "weight": weight, "eps": eps}
        cases.append(ArrayCase(name, arguments, expected, hint))
    zeros = mx.zeros((2, 256))
    weight = normal((256,), seed=5)
    hint = "a row of zeros gives zeros, because of eps"
    arguments = {"x": zeros, "weight": weight, "eps": 1e-6}
    cases.append(ArrayCase("zeros", arguments, exact(zeros), hint))
    return check_arrays("rms_norm", solution, cases)


def grade_paged_attention(
    solution: Callable[[mx.array, mx.array, mx.array, list[int], int], mx.array],
) -> str:
    """Grade `paged_attention(q, k, v, block_table, seq_len)`: one token and one head over pages.

    The shapes are q `D`, k and v `P page D`. Key j is at offset `j % page` of the page
    `block_table[j // page]`. The token sees the keys 0 to `seq_len - 1`.

    Raises:
        ExerciseError: if a result is wrong.
    """
    order = "key j is at offset j % page of the page block_table[j // page]"
    formula = f"divide the scores by sqrt(D), softmax over the keys 0 to seq_len - 1; {order}"
    rest = f"slots from seq_len on hold anything (here NaN): cut them off; {order}"
    spare = "the block table may have more pages than seq_len needs"
    cases = []
    for name, size, table, seq_len, dim, magnitude, hint in (
        ("one full page", 4, [2], 4, 64, 1.0, formula),
        ("three full pages", 4, [5, 0, 3], 12, 64, 1.0, order),
        ("a last page of one key", 4, [5, 0, 3], 9, 64, 1.0, rest),
        ("a spare page", 4, [1, 4, 2], 8, 64, 1.0, spare),
        ("pages of 32", 32, [3, 5, 1], 70, 64, 1.0, rest),
        ("D = 32", 4, [5, 0, 3], 9, 32, 1.0, _WIDTH),
        ("large scores", 4, [5, 0, 3], 9, 64, 100.0, _LARGE),
    ):
        q, k = _scored((dim,), (6, size, dim), magnitude, seeds=(6, 7))
        v = normal((6, size, dim), seed=8)
        held = np.zeros((6, size), dtype=bool)
        for j in range(seq_len):
            held[table[j // size], j % size] = True
        visible = mx.array(held)[..., None]
        pages = [mx.where(visible, each, mx.nan) for each in (k, v)]
        expected = oracle.paged_attention(
            exact(q)[None, None], exact(k)[:, None], exact(v)[:, None], [table], [0, 1], [seq_len]
        )[0, 0]
        arguments = {"q": q, "k": pages[0], "v": pages[1], "block_table": table, "seq_len": seq_len}
        cases.append(ArrayCase(name, arguments, expected, hint))
    return check_arrays("paged_attention", solution, cases)


def grade_softmax_rows(solution: Callable[[mx.array], mx.array]) -> str:
    """Grade `softmax(x)` along the last axis of a float32 matrix, computed by a kernel.

    Raises:
        ExerciseError: if a result is wrong.
    """
    formula = "divide exp(x - maximum) by the sum of exp over the 32 threads: simd_max, simd_sum"
    width = "each thread takes every 32nd number, and must stop at the width of the row"
    maximum = "reduce the maximum over the 32 threads with simd_max, and subtract it before exp"
    cases = []
    for name, shape, magnitude, hint in (
        ("one row of 32", (1, 32), 1.0, formula),
        ("5 rows of 32", (5, 32), 1.0, "the row is threadgroup_position_in_grid.x"),
        ("3 rows of 7", (3, 7), 1.0, width),
        ("2 rows of 100", (2, 100), 1.0, width),
        ("large scores", (2, 100), 100.0, maximum),
    ):
        x = normal(shape, seed=9, magnitude=magnitude)
        cases.append(ArrayCase(name, {"x": x}, oracle.softmax(exact(x)), hint))
    return check_arrays("softmax", solution, cases)
