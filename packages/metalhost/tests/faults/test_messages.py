"""Messages of faults: they name the accesses, lines and limits that matter."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from metalhost import Fault, FaultKind, KernelFaultError, Settings, metal_kernel, using

J = "uint j = thread_position_in_threadgroup.x, g = threadgroup_position_in_grid.x;"


def faults(
    lines: Sequence[str], *, settings: Settings | None = None, init_value: float | None = None
) -> tuple[Fault, ...]:
    """Run a kernel in two groups of 64 threads. Return its faults."""
    kernel = metal_kernel("messages", [], ["y"], "\n".join([J, *lines]))
    with using(settings or Settings()), pytest.raises(KernelFaultError) as caught:
        kernel(
            inputs=[],
            output_shapes=[(128,)],
            output_dtypes=[np.float32],
            grid=(128, 1, 1),
            threadgroup=(64, 1, 1),
            init_value=init_value,
        )
    return caught.value.faults


def test_an_output_without_a_write(host: None) -> None:
    (fault,) = faults([])
    assert fault.message == (
        "512 of the 512 bytes of output 'y' were never written, the first at byte 0"
    )


def test_an_output_with_a_write(host: None) -> None:
    (fault,) = faults(["if (j > 0) y[g * 64 + j] = 1;"])
    assert fault.message == (
        "8 of the 512 bytes of output 'y', which is written here, were never written, "
        "the first at byte 0"
    )


def test_threadgroup_memory_beyond_that_of_metalhost(host: None) -> None:
    settings = Settings(threadgroup_memory=2**24)
    for lines in (
        [f"threadgroup int t{n};" for n in range(300)],
        ["threadgroup char t0[8];", "threadgroup float t1[1000000];"],
    ):
        (fault,) = faults(lines, settings=settings)
        assert fault.kind == FaultKind.THREADGROUP_LIMIT
        assert fault.place is not None
        last = 256 if len(lines) == 300 else 1
        assert f"'t{last}' does not fit: metalhost supports 256" in fault.message
        assert fault.place.line == last + 2
    (fault,) = faults(lines, settings=replace(settings, threadgroup_memory=32768))
    assert "a device has 32768" in fault.message


def test_a_race_with_an_earlier_access_than_the_last(host: None) -> None:
    (fault,) = faults(
        [
            "threadgroup int s;",
            "if (j == 0) s = 1;",
            "threadgroup_barrier(mem_flags::mem_threadgroup);",
            "int v = 0;",
            "if (j == 8) v = s;",  # races with line 9
            "if (j == 40) v = s;",  # is ordered before line 9
            "simdgroup_barrier(mem_flags::mem_threadgroup);",
            "if (j == 41) s = 2;",
            "y[g * 64 + j] = v;",
        ]
    )
    assert fault.place is not None
    assert fault.place.line == 9
    assert "by thread 41 of group 0, and read by several threads, the last one 40" in fault.message
    assert "no barrier orders them" in fault.message


def test_a_race_with_a_group_before_the_last(host: None) -> None:
    (fault,) = faults(
        [
            "float v = y[0];",
            "threadgroup_barrier(mem_flags::mem_device);",
            "if (g == 1 && j == 1) y[0] = v + 1;",
        ],
        init_value=0,
    )
    assert "of group 1, and read by several threads, the last one 63 of group 1" in fault.message
    assert "nothing orders groups" in fault.message
