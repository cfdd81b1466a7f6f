"""C++ compiler: found, missing or too old, and its errors at lines of the kernel."""

import os
from pathlib import Path

import numpy as np
import pytest
from metalhost import (
    CompilerError,
    KernelTextError,
    MetalKernel,
    Settings,
    compiler,
    metal_kernel,
    using,
)
from metalhost.compilation.compiler import Compiler

COMPILER_ONLY = Settings(lint=False, address_spaces=False)


def call(kernel: MetalKernel) -> None:
    """Run a kernel without inputs, with one thread and an output of one number."""
    kernel(
        inputs=[],
        output_shapes=[(1,)],
        output_dtypes=[np.float32],
        grid=(1, 1, 1),
        threadgroup=(1, 1, 1),
    )


def test_the_compiler_has_a_name_and_a_version(host: None) -> None:
    found = compiler()
    assert found.name in ("g++", "clang")
    assert found.version in str(found)


def test_a_missing_compiler_is_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, host: None
) -> None:
    monkeypatch.setenv("METALHOST_CXX", "no-such-compiler")
    kernel = metal_kernel("one", [], ["y"], "y[thread_position_in_grid.x] = 1;")
    with pytest.raises(
        CompilerError, match=r"METALHOST_CXX=no-such-compiler.*apt-get install g\+\+"
    ):
        call(kernel)


def test_a_compiler_that_is_too_old_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: None
) -> None:
    old = tmp_path / "old-g++"
    old.write_text("#!/bin/sh\necho 11.4.0\n")
    old.chmod(0o755)
    monkeypatch.setenv("METALHOST_CXX", str(old))
    with pytest.raises(CompilerError, match=r"expected g\+\+ 12 or later, got 11.4.0"):
        compiler()


def test_another_operating_system_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setenv("METALHOST_CXX", f"other-{os.getpid()}")
    with pytest.raises(CompilerError, match="expected Linux on x86_64 or aarch64"):
        compiler()


REJECTED = {
    "float a = b;": (1, "b"),
    "int a = 0;\ny[a] = max(y[0], 0);": (2, "max"),
    "int a = 0;\nfloat3 v = float3(1, 2);\ny[a] = v.x;": (2, "wrong number of components"),
    "\n\ny[0] = erf(1.0);": (3, "erf"),
    "bfloat b = 1.0;": (1, "bfloat"),
    "y[0] = min(thread_position_in_grid.x, 3);": (1, "min"),
    "y[0] = as_type<float>(half(1));": (1, "sizes differ"),
    "\ny[0] = simd_sum(ulong(1));": (2, "simd_sum"),
    "y[0] = simd_shuffle_xor(true, 1);": (1, "simd_shuffle_xor"),
    "y[0] = quad_max(long2(1)).x;": (1, "quad_max"),
}


@pytest.mark.parametrize("source", REJECTED)
def test_errors_name_the_lines_of_the_kernel(source: str, host: None) -> None:
    line, word = REJECTED[source]
    kernel = metal_kernel("wrong", [], ["y"], source)
    with using(COMPILER_ONLY), pytest.raises(KernelTextError) as caught:
        call(kernel)
    problem = caught.value.problems[0]
    assert (problem.part, problem.line) == ("source", line), problem
    assert word in str(caught.value)
    assert source.split("\n")[line - 1] in str(caught.value)


def test_errors_in_the_header_and_in_macros(host: None) -> None:
    header = "#define TWICE(v) (v.xx + missing)\ninline float f() {\n  return nothing;\n}\n"
    kernel = metal_kernel("wrong", [], ["y"], "y[0] = f() + TWICE(float2(1)).x;", header)
    with using(COMPILER_ONLY), pytest.raises(KernelTextError) as caught:
        call(kernel)
    assert ("header", 3) in {(problem.part, problem.line) for problem in caught.value.problems}
    assert "missing" in str(caught.value)


def test_clang_gets_a_new_precompiled_header_after_files_change_their_time(tmp_path: Path) -> None:
    file = tmp_path / "kernel.h"
    file.touch()
    clang, gcc = (Compiler(name, name, "19", "x86_64") for name in ("clang", "g++"))
    before = clang.precompiled_header_key(tmp_path), gcc.precompiled_header_key(tmp_path)
    os.utime(file, (1, 1))
    assert clang.precompiled_header_key(tmp_path) != before[0]
    assert gcc.precompiled_header_key(tmp_path) == before[1]
