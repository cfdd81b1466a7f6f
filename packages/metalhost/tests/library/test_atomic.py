"""Atomic operations, on outputs and in threadgroup memory."""

from collections.abc import Callable

import numpy as np
import pytest
from metalhost import (
    SWEEP,
    FaultKind,
    KernelFaultError,
    KernelTextError,
    Settings,
    metal_kernel,
    using,
)
from metalhost.settings import Mode
from numpy.typing import NDArray

Evaluate = Callable[..., NDArray[np.generic]]

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


@pytest.mark.parametrize("kind", ["int", "uint", "bool", "float"])
def test_values_of_every_type(kind: str, evaluate: Evaluate) -> None:
    results = evaluate(
        ["atomic_exchange_explicit(a, K(1), order)", "atomic_load_explicit(a, order)", "same"],
        threads=1,
        setup=f"""
        typedef {kind} K;
        const auto order = memory_order_relaxed;
        device atomic<K>* a = reinterpret_cast<device atomic_{kind}*>(y + 2);
        atomic_store_explicit(a, K(0), order);
        K expected = K(1);
        bool same = atomic_compare_exchange_weak_explicit(a, &expected, K(1), order, order);
        """,
    )
    np.testing.assert_array_equal(results[0], [0, 1, 0])


UNSUPPORTED = [
    ("half", "atomic_fetch_add_explicit(&y[0], half(1), memory_order_relaxed);"),
    ("half", "atomic_store_explicit(&y[0], half(1), memory_order_relaxed);"),
    ("uint64", "atomic_fetch_add_explicit(&y[0], 1ul, memory_order_relaxed);"),
    ("float32", "atomic_fetch_max_explicit(&y[0], 1.0f, memory_order_relaxed);"),
    ("float32", "atomic_fetch_or_explicit(&y[0], 1, memory_order_relaxed);"),
    ("bool", "atomic_fetch_add_explicit(&y[0], true, memory_order_relaxed);"),
]


@pytest.mark.parametrize("address_spaces", [True, False])
@pytest.mark.parametrize(("dtype", "source"), UNSUPPORTED)
def test_operations_that_metal_lacks_are_rejected(
    dtype: str, source: str, address_spaces: bool, host: None
) -> None:
    kernel = metal_kernel("unsupported", [], ["y"], source, atomic_outputs=True)
    with using(Settings(address_spaces=address_spaces)), pytest.raises(KernelTextError):
        kernel(
            inputs=[],
            output_shapes=[(1,)],
            output_dtypes=["float16" if dtype == "half" else dtype],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
            init_value=0,
        )


def test_sums_of_integers_wrap_around(evaluate: Evaluate) -> None:
    setup = """
    threadgroup atomic_int n;
    const auto order = memory_order_relaxed;
    atomic_store_explicit(&n, 2147483647, order);
    int a = atomic_fetch_add_explicit(&n, 1, order), b = atomic_fetch_sub_explicit(&n, 1, order);
    """
    results = evaluate(["a", "b"], np.int32, threads=1, setup=setup)
    np.testing.assert_array_equal(results[0], [2**31 - 1, -(2**31)])


def test_atomic_loads_of_inputs_and_beside_plain_reads(evaluate: Evaluate) -> None:
    setup = """
    threadgroup int s;
    if (i == 0) s = 3;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    int both = s + atomic_load_explicit(reinterpret_cast<threadgroup atomic_int*>(&s),
                                        memory_order_relaxed);
    auto p = reinterpret_cast<const device atomic_int*>(x);
    """
    calls = ["both", "atomic_load_explicit(&p[i], memory_order_relaxed)"]
    x = np.arange(32).astype(np.int32)
    results = evaluate(calls, np.int32, setup=setup, x=x)
    np.testing.assert_array_equal(results, np.stack([np.full(32, 6), x], axis=1))


def test_an_atomic_load_is_no_write(evaluate: Evaluate) -> None:
    setup = """
    threadgroup atomic_int n;
    int a = atomic_load_explicit(&n, memory_order_relaxed);
    """
    with pytest.raises(KernelFaultError) as caught:
        evaluate(["a + atomic_load_explicit(&n, memory_order_relaxed)"], np.int32, setup=setup)
    lines = {fault.place.line for fault in caught.value.faults if fault.place}
    assert caught.value.kinds == {FaultKind.UNINITIALIZED}
    assert len(lines) == 2


@pytest.mark.parametrize("mode", ["check", "fast"])
def test_a_weak_exchange_fails_at_random_in_random_orders(mode: Mode, host: None) -> None:
    source = """
    uint i = thread_position_in_grid.x, expected = 0;
    const auto order = memory_order_relaxed;
    if (!atomic_compare_exchange_weak_explicit(&y[i], &expected, 1u, order, order))
      atomic_fetch_add_explicit(&y[N], 1u + expected, order);
    """
    kernel = metal_kernel("weak", [], ["y"], source.replace("N", str(N)), atomic_outputs=True)
    for seed in range(3):
        (y,) = kernel(
            inputs=[],
            output_shapes=[(N + 1,)],
            output_dtypes=[np.uint32],
            grid=(N, 1, 1),
            threadgroup=(N, 1, 1),
            init_value=0,
            seed=seed,
            mode=mode,
        )
        failed = N - int(np.asarray(y)[:N].sum())
        assert np.asarray(y)[N] == failed
        assert failed == 0 if seed == 0 else 0 < failed < N


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
