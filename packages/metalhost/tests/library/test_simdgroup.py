"""Operations of simdgroups and quadgroups, lane by lane, in several orders of threads."""

from collections.abc import Callable

import numpy as np
import pytest
from metalhost import SWEEP, Settings
from numpy.typing import NDArray

Evaluate = Callable[..., NDArray[np.generic]]
THREADS = 64
LANE = np.arange(THREADS) % 32
RNG = np.random.default_rng(0)
# Sums of small whole numbers are exact in every order.
V = RNG.integers(-8, 8, THREADS)
W = V.reshape(2, 32)


def whole(values: NDArray[np.generic]) -> NDArray[np.generic]:
    """Repeat the value of each simdgroup for all of its lanes."""
    return np.repeat(values, 32)


def lane(source: NDArray[np.signedinteger]) -> NDArray[np.generic]:
    """Return the values of the given source lanes, in the simdgroup of each thread."""
    return W[np.arange(THREADS) // 32, source % 32]


QUAD = V.reshape(-1, 4)
FROM_QUAD = np.arange(THREADS) // 4
PREFIX = np.cumsum(W, axis=1).reshape(-1)
SIGNS = np.where(W < 0, -1, 1)
PRODUCTS = np.cumprod(SIGNS, axis=1).reshape(-1)
CALLS = {
    "simd_sum(v)": whole(W.sum(axis=1)),
    "simd_product(sign_of(v))": whole(SIGNS.prod(axis=1)),
    "simd_max(v)": whole(W.max(axis=1)),
    "simd_min(v)": whole(W.min(axis=1)),
    "simd_prefix_inclusive_sum(v)": PREFIX,
    "simd_prefix_exclusive_sum(v)": PREFIX - V,
    "simd_prefix_inclusive_product(sign_of(v))": PRODUCTS,
    "simd_prefix_exclusive_product(sign_of(v))": PRODUCTS * SIGNS.reshape(-1),
    "simd_shuffle(v, 31 - lane)": lane(31 - LANE),
    "simd_broadcast(v, 17)": lane(LANE * 0 + 17),
    "simd_broadcast_first(v)": lane(LANE * 0),
    "simd_shuffle_xor(v, 5)": lane(LANE ^ 5),
    "simd_shuffle_down(v, 3)": np.where(LANE < 29, lane(LANE + 3), V),
    "simd_shuffle_up(v, 3)": np.where(LANE >= 3, lane(LANE - 3), V),
    "simd_shuffle_rotate_down(v, 3)": lane(LANE + 3),
    "simd_shuffle_rotate_up(v, 3)": lane(LANE - 3),
    "simd_shuffle_and_fill_down(v, negative(v), 3)": np.where(LANE < 29, 1, -1) * lane(LANE + 3),
    "simd_shuffle_and_fill_up(v, negative(v), 3)": np.where(LANE >= 3, 1, -1) * lane(LANE - 3),
    "simd_is_first()": LANE == 0,
    "simd_any(v == 7)": whole(np.any(W == 7, axis=1)),
    "simd_all(v < 8)": whole(np.all(W < 8, axis=1)),
    "simd_ballot(v > 0).any()": whole(np.any(W > 0, axis=1)),
    "simd_active_threads_mask().all()": np.ones(THREADS),
    "simd_sum(float2(v, 1)).y": np.full(THREADS, 32),
    "simd_max(float2(v, 1)).x": whole(W.max(axis=1)),
    "quad_sum(v)": QUAD.sum(axis=1)[FROM_QUAD],
    "quad_product(sign_of(v))": SIGNS.reshape(-1, 4).prod(axis=1)[FROM_QUAD],
    "quad_max(v)": QUAD.max(axis=1)[FROM_QUAD],
    "quad_min(v)": QUAD.min(axis=1)[FROM_QUAD],
    "quad_broadcast(v, 2)": QUAD[FROM_QUAD, 2],
    "quad_shuffle(v, 3 - lane % 4)": QUAD[FROM_QUAD, 3 - LANE % 4],
    "quad_shuffle_xor(v, 1)": QUAD[FROM_QUAD, LANE % 4 ^ 1],
    "quad_shuffle_down(v, 1)": np.where(LANE % 4 < 3, np.roll(V, -1), V),
    "quad_shuffle_up(v, 2)": np.where(LANE % 4 >= 2, np.roll(V, 2), V),
}
HEADER = """
template <class T> T sign_of(T v) { return v < T(0) ? T(-1) : T(1); }
template <class T> T negative(T v) { return T(-v); }
"""
SETUP = "const ushort lane = i % 32; auto v = x[i];"


@pytest.mark.parametrize("settings", SWEEP, ids=str)
def test_operations_of_floats(settings: Settings, evaluate: Evaluate) -> None:
    x = V.astype(np.float32)
    results = evaluate(
        list(CALLS), threads=THREADS, header=HEADER, setup=SETUP, settings=settings, x=x
    )
    for k, (call, expected) in enumerate(CALLS.items()):
        np.testing.assert_array_equal(results[:, k], expected, err_msg=call)


@pytest.mark.parametrize("dtype", [np.int32, np.float16, np.int8])
def test_operations_of_other_types(dtype: type[np.generic], evaluate: Evaluate) -> None:
    calls = {call: expected for call, expected in CALLS.items() if "float2" not in call}
    results = evaluate(
        list(calls), dtype, threads=THREADS, header=HEADER, setup=SETUP, x=V.astype(dtype)
    )
    for k, (call, expected) in enumerate(calls.items()):
        np.testing.assert_array_equal(results[:, k], expected.astype(dtype), err_msg=call)


def test_bitwise_operations(evaluate: Evaluate) -> None:
    x = RNG.integers(0, 2**32, THREADS).astype(np.uint32)
    both = x.reshape(2, 32)
    calls = {
        "simd_and(x[i] | 0xff)": whole(np.bitwise_and.reduce(both | 0xFF, axis=1)),
        "simd_or(x[i] & 0xf0)": whole(np.bitwise_or.reduce(both & 0xF0, axis=1)),
        "simd_xor(x[i])": whole(np.bitwise_xor.reduce(both, axis=1)),
        "uint(ulong(simd_ballot(x[i] & 1)))": whole(
            ((both & 1).astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(axis=1)
        ),
    }
    results = evaluate(list(calls), np.uint32, threads=THREADS, x=x)
    for k, expected in enumerate(calls.values()):
        np.testing.assert_array_equal(results[:, k], expected)


def test_lanes_outside_of_the_group_take_no_part(evaluate: Evaluate) -> None:
    results = evaluate(["simd_sum(1)", "simd_min(float(i))", "simd_max(-float(i))"], threads=20)
    np.testing.assert_array_equal(results, np.tile([20, 0, 0], (20, 1)))


def test_diverged_lanes_with_allow_divergence(evaluate: Evaluate) -> None:
    setup = """float some = -1;
    if (i % 3 == 0) some = simd_sum(1.0f);
    else if (i % 3 == 1) some = simd_sum(10.0f);
    """
    for seed in range(3):
        settings = Settings(allow_divergence=True, seed=seed)
        results = evaluate(["some", "simd_sum(1)"], setup=setup, settings=settings)
        expected = np.array([11.0, 110.0, -1.0] * 11)[:32]
        np.testing.assert_array_equal(results[:, 0], expected)
        np.testing.assert_array_equal(results[:, 1], 32)
