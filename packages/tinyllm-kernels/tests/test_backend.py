"""Availability of backends, reasons for an absence, and environment variables."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import mlx.core as mx
import pytest
from tinyllm_kernels import BackendError, BackendStatus, available, opset
from tinyllm_ops import MLX, REFERENCE

# An install without a compiler is supported: MLX and the reference compute there.
needs_native = pytest.mark.skipif(not available()[0].present, reason="no native backend")


def test_the_reference_and_mlx_are_always_there() -> None:
    assert [backend.name for backend in available()] == [
        "cpu",
        "cpu-int8",
        "metal",
        "mlx",
        "reference",
    ]
    assert opset("reference") is REFERENCE
    assert opset("mlx") is MLX


def test_an_unknown_backend_is_refused_with_the_known_names() -> None:
    with pytest.raises(
        ValueError, match="expected one of cpu, cpu-int8, metal, mlx, reference, got 'cuda'"
    ):
        opset("cuda")


def test_metal_is_present_or_names_its_requirement(monkeypatch: pytest.MonkeyPatch) -> None:
    metal = available()[2]
    assert metal.present == (mx.metal.is_available() and mx.default_device().type == mx.gpu)
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    assert "no metal: MLX finds no Metal device" in str(available()[2])
    with pytest.raises(BackendError, match="a Mac with Apple silicon"):
        opset("metal")


def test_metal_names_its_gpu_and_wants_to_be_where_mlx_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda device: {"device_name": "Apple M4"})
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    assert str(available()[2]) == "metal: Metal, Apple M4"
    assert opset("metal").name == "metal"
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.cpu))
    with pytest.raises(BackendError, match=r"default device is the CPU: call mx\.set_"):
        opset("metal")


def test_a_backend_describes_itself_in_one_line() -> None:
    assert str(BackendStatus("cpu", True, "avx2, 2 threads")) == "cpu: avx2, 2 threads"
    assert str(BackendStatus("cpu", False, "no C++ compiler was there")) == (
        "no cpu: no C++ compiler was there"
    )


def absent(name: str) -> ModuleType:
    raise ModuleNotFoundError(name)


def test_a_build_without_a_compiler_is_said_and_not_a_crash(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tinyllm_kernels.cpu.extension.files", lambda package: tmp_path)
    monkeypatch.setattr(importlib, "import_module", absent)
    assert not available()[0].present
    assert "--reinstall-package tinyllm-kernels" in available()[0].detail
    with pytest.raises(BackendError, match="the extension was not built"):
        opset("cpu")
    (tmp_path / "no_cpu_backend.txt").write_text("no C++ compiler was there")
    assert str(available()[0]) == "no cpu: no C++ compiler was there"


def test_an_extension_for_another_mlx_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = ModuleType("stranger")

    def rms_norm(*arguments: object) -> None:
        raise TypeError("incompatible function arguments")

    vars(stranger)["rms_norm"] = rms_norm
    monkeypatch.setattr(importlib, "import_module", lambda name: stranger)
    with pytest.raises(BackendError, match="built for another version of MLX: `uv sync"):
        opset("cpu")


@needs_native
def test_a_lower_instruction_set_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYLLM_CPU_ISA", "portable")
    assert available()[0].detail.startswith("portable, ")
    monkeypatch.setenv("TINYLLM_CPU_ISA", "mmx")
    assert not available()[0].present
    assert "expected one of" in available()[0].detail
    assert "got mmx" in available()[0].detail


@needs_native
# Only the sets that the machine supports, and the build did not leave out, may be chosen.
@pytest.mark.parametrize("name", ["amx", "avx512bf16", "avx512vnni", "avx512", "avxvnni", "avx2"])
def test_an_instruction_set_that_the_machine_lacks_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    found = importlib.import_module("tinyllm_kernels._cpu").instruction_sets()
    monkeypatch.setenv("TINYLLM_CPU_ISA", name)
    assert available()[0].present == (name in found)
    if name not in found:
        assert available()[0].detail.endswith(f"expected one of {', '.join(found)}, got {name}")


@needs_native
@pytest.mark.parametrize("count", ["0", "-1", "two", "1.5", "99999999999999999999"])
def test_an_invalid_number_of_threads_is_refused(
    monkeypatch: pytest.MonkeyPatch, count: str
) -> None:
    monkeypatch.setenv("TINYLLM_NUM_THREADS", count)
    assert not available()[0].present
    assert f"expected a number from 1 to 1024, got {count}" in available()[0].detail


def python(code: str, **environ: str) -> str:
    """Run `code` in a new process, which has its own thread pool, and return the output."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


SUM = """
import mlx.core as mx
from tinyllm_kernels import opset
ops = opset("cpu")
w = mx.ones((300, 64))
mx.eval(w)
def total(): return ops.linear(mx.ones((7, 64)), w).sum().item()
"""


@needs_native
@pytest.mark.parametrize("threads", ["1", "2", "3", "8"])
def test_any_number_of_threads_gives_the_same_sums(threads: str) -> None:
    code = SUM + "print({total() for _ in range(200)})"
    assert python(code, TINYLLM_NUM_THREADS=threads) == f"{{{float(7 * 300 * 64)}}}\n"


ATTENTION = """
import hashlib
import mlx.core as mx
import numpy as np
from tinyllm_kernels import opset
x = [mx.random.normal((2, 4, 900, 64), key=mx.random.key(n)) for n in range(3)]
for length in (1, 4, 90):
    y = opset("cpu").attention(x[0][:, :, :length], *x[1:], None, "causal")
    print(hashlib.sha256(np.array(y)).hexdigest())
"""


@needs_native
def test_any_number_of_threads_attends_to_the_same_bits() -> None:
    alone, *others = (python(ATTENTION, TINYLLM_NUM_THREADS=threads) for threads in "125")
    assert others == [alone, alone]


@needs_native
# macOS has no call that binds a process to a core.
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux's own")
def test_one_core_gets_one_thread_and_the_same_sums() -> None:
    code = (
        "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        + SUM
        + """
from tinyllm_kernels import available
print(available()[0].detail.split(", ")[1], total())
"""
    )
    assert python(code, TINYLLM_NUM_THREADS="") == f"1 thread {float(7 * 300 * 64)}\n"


@needs_native
def test_several_streams_at_once_do_not_deadlock() -> None:
    code = (
        SUM
        + """
import threading
found = []
def work():
    with mx.stream(mx.new_stream(mx.cpu)):
        for _ in range(100):
            found.append(total())
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(found), set(found))
"""
    )
    expected = f"400 {{{float(7 * 300 * 64)}}}\n"
    assert python(code, TINYLLM_NUM_THREADS="2") == expected


@needs_native
def test_a_large_head_is_shared_by_the_threads() -> None:
    ops = opset("cpu")
    w = mx.random.normal((5000, 64))
    x = mx.random.normal((1, 64))
    assert mx.allclose(ops.linear(x, w), x @ w.T, atol=1e-4).item()
