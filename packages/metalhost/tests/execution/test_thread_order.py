"""Order of threads: the natural order of seed 0, and the random orders of other seeds."""

import numpy as np
from metalhost import Settings, metal_kernel, using
from numpy.typing import NDArray

# Each thread draws a number when it runs, so the numbers are the order.
DRAW = """
    const uint i = thread_position_in_grid.x;
    order[i] = atomic_fetch_add_explicit(reinterpret_cast<device atomic_uint*>(next), 1u,
                                         memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_none);
    again[i] = atomic_fetch_add_explicit(reinterpret_cast<device atomic_uint*>(next), 1u,
                                         memory_order_relaxed);
"""


def orders(seed: int) -> tuple[NDArray[np.generic], ...]:
    with using(Settings(seed=seed)):
        order, again, _ = metal_kernel("draw", [], ["order", "again", "next"], DRAW)(
            inputs=[],
            output_shapes=[(512,), (512,), (1,)],
            output_dtypes=[np.uint32] * 3,
            grid=(512, 1, 1),
            threadgroup=(128, 1, 1),
            init_value=0,
        )
    return np.asarray(order), np.asarray(again)


def test_seed_0_runs_threads_by_their_indices(host: None) -> None:
    order, again = orders(0)
    group = np.arange(512) // 128
    np.testing.assert_array_equal(order, np.arange(512) + 128 * group)
    np.testing.assert_array_equal(again, np.arange(512) + 128 * (group + 1))


def test_each_seed_has_its_own_order_and_repeats_it(host: None) -> None:
    seen = []
    for seed in [*range(1, 6), 2**64 - 1]:
        order, again = orders(seed)
        for group in range(4):
            threads = slice(128 * group, 128 * (group + 1))
            # In every order, all threads of a group draw once before any thread draws twice.
            assert order[threads].max() < again[threads].min()
            assert (np.diff(order[threads].astype(np.int64)) < 0).any()
        np.testing.assert_array_equal(orders(seed)[0], order)
        seen.append(order.tobytes())
    assert len(set(seen)) == 6


def test_a_missing_barrier_gives_wrong_numbers_only_in_random_orders(host: None) -> None:
    # In the natural order thread 0 runs first, which hides the fault.
    source = """
    threadgroup float s;
    if (thread_index_in_threadgroup == 0) s = x;
    y[thread_position_in_grid.x] = s;
    """
    kernel = metal_kernel("broadcast", ["x"], ["y"], source)
    right = []
    for seed in range(8):
        (y,) = kernel(
            inputs=[3.0],
            output_shapes=[(64,)],
            output_dtypes=[np.float32],
            grid=(64, 1, 1),
            threadgroup=(64, 1, 1),
            mode="fast",
            seed=seed,
        )
        right.append(bool((y == 3).all()))
    assert right == [True] + [False] * 7
