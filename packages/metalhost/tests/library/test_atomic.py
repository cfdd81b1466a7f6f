"""Atomic operations, on outputs and in threadgroup memory."""

import numpy as np
import pytest
from metalhost import SWEEP, FaultKind, KernelFaultError, Settings, metal_kernel, using

N = 100
X = np.random.default_rng(2).integers(0, 2**20, N).astype(np.uint32)


@pytest.mark.parametrize("settings", SWEEP, ids=str)
def test_operations_return_the_previous_value(settings: Settings, host: None) -> None:
    source = """
    uint i = thread_position_in_grid.x;
    const auto order = memory_order_relaxed;
    atomic_fetch_add_explicit(&y[0], x[i], order);
    atomic_fetch_sub_explicit(&y[1], x[i], order);
    atomic_fetch_max_explicit(&y[2], x[i], order);
    atomic_fetch_min_explicit(&y[3], x[i], order);
    atomic_fetch_and_explicit(&y[4], x[i] | 1, order);
    atomic_fetch_or_explicit(&y[5], x[i], order);
    atomic_fetch_xor_explicit(&y[6], x[i], order);
    uint seen = atomic_load_explicit(&y[7], order);
    while (!atomic_compare_exchange_weak_explicit(&y[7], &seen, seen + 2, order, order)) {}
    if (i == 7) atomic_store_explicit(&y[8], 77, order);
    if (i == 8) atomic_exchange_explicit(&y[9], 88, order);
    """
    with using(settings):
        (y,) = metal_kernel("atomics", ["x"], ["y"], source, atomic_outputs=True)(
            inputs=[X],
            output_shapes=[(10,)],
            output_dtypes=[np.uint32],
            grid=(N, 1, 1),
            threadgroup=(32, 1, 1),
            init_value=12345,
        )
    start = np.uint32(12345)
    with np.errstate(over="ignore"):
        expected = [
            start + X.sum(dtype=np.uint32),
            start - X.sum(dtype=np.uint32),
            max(start, X.max()),
            min(start, X.min()),
            np.bitwise_and.reduce(X | 1) & start,
            np.bitwise_or.reduce(X) | start,
            np.bitwise_xor.reduce(X) ^ start,
            start + 2 * N,
            77,
            88,
        ]
    np.testing.assert_array_equal(y, expected)


def test_a_histogram_in_threadgroup_memory(host: None) -> None:
    source = """
    threadgroup atomic_int bins[4];
    uint i = thread_position_in_grid.x, j = thread_position_in_threadgroup.x;
    if (j < 4) atomic_store_explicit(&bins[j], 0, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    atomic_fetch_add_explicit(&bins[x[i] % 4], 1, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (j < 4) y[j] = atomic_load_explicit(&bins[j], memory_order_relaxed);
    """
    (y,) = metal_kernel("histogram", ["x"], ["y"], source)(
        inputs=[X],
        output_shapes=[(4,)],
        output_dtypes=[np.int32],
        grid=(N, 1, 1),
        threadgroup=(N, 1, 1),
    )
    np.testing.assert_array_equal(y, np.bincount(X % 4, minlength=4))


def test_atomic_addition_of_floats(host: None) -> None:
    source = "atomic_fetch_add_explicit(&y[0], 0.5f, memory_order_relaxed);"
    source += "uint i = thread_position_in_grid.x;"
    (y,) = metal_kernel("sum", [], ["y"], source, atomic_outputs=True)(
        inputs=[],
        output_shapes=[(1,)],
        output_dtypes=[np.float32],
        grid=(N, 1, 1),
        threadgroup=(10, 1, 1),
        init_value=0,
    )
    np.testing.assert_array_equal(y, [N / 2])


def test_a_plain_store_races_with_an_atomic_addition(host: None) -> None:
    source = """
    threadgroup atomic_int sum;
    uint i = thread_position_in_grid.x;
    if (i == 0) atomic_store_explicit(&sum, 0, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    atomic_fetch_add_explicit(&sum, 1, memory_order_relaxed);
    y[i] = *reinterpret_cast<threadgroup int*>(&sum);
    """
    with pytest.raises(KernelFaultError) as caught:
        metal_kernel("mixed", [], ["y"], source)(
            inputs=[],
            output_shapes=[(32,)],
            output_dtypes=[np.int32],
            grid=(32, 1, 1),
            threadgroup=(32, 1, 1),
        )
    assert caught.value.kinds == {FaultKind.RACE}
    assert {fault.place.line for fault in caught.value.faults if fault.place} <= {6, 7}
