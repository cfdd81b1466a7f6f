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
