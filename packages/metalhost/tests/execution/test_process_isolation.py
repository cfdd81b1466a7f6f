"""Kernels run in processes of their own: a crash is an exception, and leaves no files behind."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from metalhost import (
    FaultKind,
    KernelFaultError,
    MetalKernel,
    Settings,
    compiler,
    metal_kernel,
    using,
)
from metalhost.execution.launch import Finding
from metalhost.settings import current
from numpy.typing import NDArray


def call(kernel: MetalKernel, *inputs: NDArray[np.float32] | float) -> NDArray[np.generic]:
    """Run a kernel with 32 threads, and return its output of 32 numbers."""
    (y,) = kernel(
        inputs=inputs,
        output_shapes=[(32,)],
        output_dtypes=[np.float32],
        grid=(32, 1, 1),
        threadgroup=(32, 1, 1),
    )
    assert isinstance(y, np.ndarray)
    return y


def run(source: str, settings: Settings) -> frozenset[FaultKind]:
    """Run an invalid kernel, and return the kinds of its faults."""
    text = f"uint i = thread_position_in_grid.x;\n{source}"
    kernel = metal_kernel("invalid", ["x"], ["y"], text)
    with using(settings), pytest.raises(KernelFaultError) as caught:
        call(kernel, np.zeros(32, np.float32))
    return caught.value.kinds


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("*reinterpret_cast<device float*>(i * 8ul) = 1;", FaultKind.CRASH),
        ("y[i] = *reinterpret_cast<const device float*>(~7ul);", FaultKind.CRASH),
        ("int zero = int(x[i]); y[i] = (int(i) + 7) / zero;", FaultKind.CRASH),
        ("y[i + (1ul << 44)] = 1;", FaultKind.CRASH),
        ("for (;;) y[i] = x[i] + 1;", FaultKind.TIMEOUT),
    ],
)
def test_faults_that_end_a_process(source: str, kind: FaultKind, host: None) -> None:
    if "/ zero" in source and not compiler().target.startswith("x86_64"):
        pytest.skip("integer division by zero does not trap on this processor")
    assert run(source, Settings(mode="fast", timeout=0.3)) == {kind}


def test_a_kernel_that_overwrites_the_runtime(host: None) -> None:
    # From a local variable upward: return addresses, the stacks of other fibers, and all beyond.
    source = """
    float t[4];
    thread float* p = t + int(x[i]);
    for (uint k = 0; k < 4000000; ++k) p[k] = k + x[k % 32];
    y[i] = p[3];
    """
    kinds = run(source, Settings(mode="fast", timeout=2))
    assert kinds <= {FaultKind.CRASH, FaultKind.STACK_OVERFLOW, FaultKind.OUT_OF_BOUNDS}


def test_several_threads_can_run_kernels(host: None) -> None:
    kernel = metal_kernel(
        "add", ["x", "n"], ["y"], "uint i = thread_position_in_grid.x; y[i] = x[i] + n;"
    )

    def adds(n: int) -> bool:
        y = call(kernel, np.arange(32, dtype=np.float32), float(n))
        return np.array_equal(y, np.arange(32) + n)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(adds, range(16)))


def test_nested_settings_are_restored(host: None) -> None:
    with using(Settings(seed=5)):
        assert current().seed == 5
        with using(Settings(mode="fast")):
            assert current() == Settings(mode="fast")
        assert current().seed == 5
    assert current() == Settings()


def test_a_record_of_the_runtime_is_parsed() -> None:
    record = "race\t<source>\t12\t1f,2e\ta0\t3\tread of 't' at {other}"
    finding = Finding.parse(record)
    assert finding == Finding(
        FaultKind.RACE, "read of 't' at {other}", "source", 12, (0x1F, 0x2E), (0xA0,), 3
    )


@pytest.mark.parametrize("record", ["", "race", "race\t<source>\tx\t\t\t1\t", "odd\t\t0\t\t\t1\t"])
def test_a_corrupted_record_is_ignored(record: str) -> None:
    assert Finding.parse(record) is None


def test_a_call_leaves_no_temporary_files(host: None, tmp_path: Path) -> None:
    script = """
import numpy as np, metalhost
kernel = metalhost.metal_kernel("one", [], ["y"], "y[thread_position_in_grid.x] = 1;")
sizes = dict(grid=(1, 1, 1), threadgroup=(1, 1, 1))
print(kernel(inputs=[], output_shapes=[(1,)], output_dtypes=[np.float32], **sizes)[0][0])
"""
    environ = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environ, check=True
    )
    assert done.stdout == "1.0\n"
    assert list(tmp_path.iterdir()) == []
