"""Planted faults: each kernel has one fault, which must be reported at its line.

The line of the fault ends in `// here`. The mode `check` must find all faults in the natural order
of threads. The mode `fast` must find the faults with `fast=True`.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from metalhost import Fault, FaultKind, KernelFaultError, Settings, metal_kernel, using

K = FaultKind
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
NAMES = """
    const uint i = thread_position_in_grid.x;
    const uint j = thread_position_in_threadgroup.x;
    const uint sg = simdgroup_index_in_threadgroup;
"""


@dataclass(frozen=True)
class Planted:
    """Kernel with one fault, 64 threads, an input x and a float output y of 64 elements each."""

    name: str
    kind: FaultKind
    source: str
    header: str = ""
    fast: bool = False
    group: int = 64
    dtype: type[np.generic] = np.float32
    # Enough for the program to start under qemu on a busy machine.
    settings: Settings = field(default_factory=lambda: Settings(timeout=2.0))
    init_value: float | None = None

    def run(self, settings: Settings) -> tuple[Fault, ...]:
        kernel = metal_kernel("planted", ["x"], ["y"], NAMES + self.source, self.header)
        x = np.arange(64).astype(self.dtype)
        with using(settings):
            try:
                kernel(
                    inputs=[x],
                    output_shapes=[(64,)],
                    output_dtypes=[np.float32],
                    grid=(64, 1, 1),
                    threadgroup=(self.group, 1, 1),
                    init_value=self.init_value,
                )
            except KernelFaultError as error:
                return error.faults
        return ()


def exchange(barrier: str, partner: str = "63 - j") -> Planted:
    """Make a kernel in which each thread reads the value of its partner after a barrier."""
    source = f"threadgroup float t[64];\nt[j] = x[i];\n{barrier}\ny[i] = t[{partner}];  // here"
    return Planted(f"exchange over {barrier or 'nothing'} with {partner}", K.RACE, source)


def out_of_bounds(
    name: str,
    source: str,
    header: str = "",
    *,
    fast: bool = False,
    group: int = 64,
    dtype: type[np.generic] = np.float32,
) -> Planted:
    return Planted(name, K.OUT_OF_BOUNDS, source, header, fast, group, dtype)


PLANTED = [
    # Accesses out of bounds.
    out_of_bounds("read behind an input", "y[i] = x[i + 1];  // here", fast=True),
    out_of_bounds("read before an input", "y[i] = x[int(i) - 1];  // here"),
    out_of_bounds("read far behind an input", "y[i] = x[i + 1000000];  // here", fast=True),
    out_of_bounds("half read behind", "y[i] = float(x[i + 1]);  // here", dtype=np.float16),
    out_of_bounds("byte read behind", "y[i] = x[i + 1];  // here", dtype=np.int8),
    out_of_bounds("long read behind", "y[i] = x[i + 1];  // here", dtype=np.int64, fast=True),
    out_of_bounds("write behind an output", "y[i + 1] = x[i];  // here", fast=True),
    out_of_bounds(
        "vector read behind an input",
        "auto v = reinterpret_cast<const device float4*>(x + 2);\ny[i] = v[i / 4].w;  // here",
    ),
    out_of_bounds(
        "read behind a threadgroup variable",
        f"threadgroup float t[64];\nthreadgroup float* p = t;\np[j] = x[i];\n{BARRIER}\n"
        "y[i] = p[j + 1];  // here",
    ),
    out_of_bounds(
        "write before a threadgroup variable",
        f"threadgroup float t[64];\nthreadgroup float* p = t;\np[int(j) - 1] = x[i];  // here\n"
        f"{BARRIER}\ny[i] = p[j];",
    ),
    out_of_bounds(
        "wild pointer",
        "auto p = reinterpret_cast<const device float*>(4096ul);\ny[i] = p[i];  // here",
    ),
    out_of_bounds(
        "in a function of the header",
        "y[i] = pick(x, i);",
        header="inline float pick(const device float* p, uint i) {\n  return p[i + 9];  // here\n}",
        fast=True,
    ),
    out_of_bounds(
        "matrix load behind an input",
        "simdgroup_float8x8 m;\nsimdgroup_load(m, x, 9);  // here\nsimdgroup_store(m, y, 8);",
        group=32,
    ),
    Planted(
        "write to an input",
        K.WRITE_TO_INPUT,
        "*const_cast<device float*>(x + i) = 1;  // here\ny[i] = 0;",
        fast=True,
    ),
    Planted(
        "index behind a local array",
        K.UNDEFINED,
        "float t[4] = {0, 1, 2, 3};\ny[i] = t[i % 5] + x[i];  // here",
    ),
    # Races.
    exchange(""),
    exchange("", "j ^ 1"),
    exchange("simdgroup_barrier(mem_flags::mem_threadgroup);", "j ^ 32"),
    exchange("threadgroup_barrier(mem_flags::mem_device);", "j ^ 32"),
    exchange("simdgroup_barrier(mem_flags::mem_none);", "j ^ 1"),
    Planted(
        "overwritten before all threads have read",
        K.RACE,
        f"threadgroup float t[64];\nt[j] = x[i];\n{BARRIER}\nfloat v = t[63 - j];\n"
        f"t[j] = v;  // here\n{BARRIER}\ny[i] = t[j];",
    ),
    Planted(
        "two threads write the same element",
        K.RACE,
        f"threadgroup float t[2];\nt[j % 2] = x[i];  // here\n{BARRIER}\ny[i] = t[0];",
    ),
    Planted(
        "broadcast without a barrier",
        K.RACE,
        "threadgroup float s;\nif (j == 0) s = x[0];\ny[i] = s;  // here",
    ),
    Planted(
        "exchange through an output",
        K.RACE,
        f"y[i] = x[i];\n{BARRIER}\nfloat v = y[i ^ 32];  // here\n"
        "threadgroup_barrier(mem_flags::mem_device);\ny[i] = v;",
    ),
    Planted(
        "two groups write the same element", K.RACE, "y[j] = x[i];  // here\ny[i] = x[i];", group=32
    ),
    Planted(
        "one group reads an element that another writes",
        K.RACE,
        "y[i] = x[i];\nif (i == 32) y[i] += y[0];  // here",
        group=32,
    ),
    # Uninitialized memory.
    Planted(
        "read of a threadgroup variable",
        K.UNINITIALIZED,
        f"threadgroup float t[64];\nif (j < 60) t[j] = x[i];\n{BARRIER}\n"
        "y[i] = t[63 - j];  // here",
    ),
    Planted("read of an output", K.UNINITIALIZED, "y[i] += x[i];  // here"),
    Planted("output partly unwritten", K.UNWRITTEN_OUTPUT, "if (i < 60) y[i] = x[i];  // here"),
    # Divergence.
    Planted(
        "barrier in a branch",
        K.DIVERGENCE,
        f"if (sg == 0) {BARRIER}  // here\ny[i] = x[i];",
        fast=True,
    ),
    Planted(
        "two different barriers",
        K.DIVERGENCE,
        f"if (sg == 0)\n{BARRIER}  // here\nelse\n{BARRIER}\ny[i] = x[i];",
        fast=True,
    ),
    Planted(
        "return before a barrier",
        K.DIVERGENCE,
        f"y[i] = 0;\nif (j >= 40) return;\n{BARRIER}  // here\ny[i] = x[i];",
        fast=True,
    ),
    Planted(
        "barrier against simd operation",
        K.DIVERGENCE,
        f"float s = 0;\nif (j % 2) s = simd_sum(x[i]);\nelse {BARRIER}  // here\ny[i] = s;",
        fast=True,
    ),
    Planted(
        "simd operations of one simdgroup at two places",
        K.DIVERGENCE,
        "float s = 0;\nif (j % 2 == 0)\ns = simd_sum(x[i]);  // here\nelse\n"
        "s = simd_max(x[i]);\ny[i] = s;",
        fast=True,
    ),
    Planted(
        "two barriers in a line",
        K.DIVERGENCE,
        f"if (sg == 0) {BARRIER} else {BARRIER}  // here\ny[i] = x[i];",
        fast=True,
    ),
    Planted(
        "simd operations in both branches of a line",
        K.DIVERGENCE,
        "y[i] = j % 2 ? simd_sum(x[i]) : simd_sum(2 * x[i]);  // here",
        fast=True,
    ),
    Planted(
        "function called in both branches",
        K.DIVERGENCE,
        "if (j % 2)\ny[i] = total(x[i]);\nelse\ny[i] = total(2 * x[i]);  // here",
        header="inline float total(float v) { return simd_sum(v); }",
    ),
    Planted(
        "barrier of a function called in both branches",
        K.DIVERGENCE,
        # The branches differ in order, because a compiler may merge two equal branches.
        "if (sg == 0) {\ny[i] = 0;\njoin();  // here\n} else {\njoin();\ny[i] = 1;\n}",
        header=f"inline void join() {{ {BARRIER} }}",
    ),
    Planted(
        "simd operation after other threads have returned",
        K.INACTIVE_LANE,
        "y[i] = 0;\nif (j >= 40) return;\ny[i] = simd_sum(x[i]);  // here",
        fast=True,
    ),
    Planted(
        "shuffle from a lane that has returned",
        K.INACTIVE_LANE,
        "y[i] = 0;\nif (j % 32 >= 20) return;\ny[i] = simd_shuffle(x[i], 25);  // here",
        settings=Settings(allow_divergence=True),
        fast=True,
    ),
    # Undefined behavior.
    Planted("signed overflow", K.UNDEFINED, "int k = int(i) + 2147483600;  // here\ny[i] = k;"),
    Planted("shift by too much", K.UNDEFINED, "y[i] = x[i] + (1 << (i + 1));  // here"),
    Planted("cast of a number that is too small", K.UNDEFINED, "y[i] = uint(x[i] - 9);  // here"),
    Planted("index behind a vector", K.UNDEFINED, "y[i] = float3(x[i])[i % 4];  // here"),
    Planted("division by zero", K.UNDEFINED, "y[i] = 64 / (int(i) - 5);  // here"),
    Planted(
        "misaligned load",
        K.UNDEFINED,
        "auto v = reinterpret_cast<const device float4*>(x + 1);\ny[i] = v[i / 8].x;  // here",
    ),
    # Limits.
    Planted(
        "too much threadgroup memory",
        K.THREADGROUP_LIMIT,
        f"threadgroup float t[9000];  // here\nt[j] = x[i];\n{BARRIER}\ny[i] = t[j];",
        fast=True,
    ),
    Planted("endless loop", K.TIMEOUT, "while (x[i] >= 0) y[i] = 1;  // here", fast=True),
    Planted(
        "endless loop over the C library",
        K.TIMEOUT,
        "while (x[i] >= 0) y[i] = pow(cosh(x[i]), x[i]);  // here",
        fast=True,
    ),
    Planted(
        "too many local variables",
        K.STACK_OVERFLOW,
        "y[i] = large(x, i);",
        header="__attribute__((noinline))\n"
        "float large(const device float* p, uint i) {  // here\n"
        "  float t[200000];\n  for (int k = 0; k < 200000; ++k) t[k] = p[k % 64];\n"
        "  return t[i * 100];\n}",
        fast=True,
    ),
]


def expected_place(planted: Planted) -> tuple[str, int]:
    for part, text in (("source", NAMES + planted.source), ("header", planted.header)):
        for number, line in enumerate(text.split("\n"), 1):
            if line.endswith("// here"):
                return part, number
    raise AssertionError(f"{planted.name}: no line ends in // here")


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_check_reports_the_fault_at_its_line(planted: Planted, host: None) -> None:
    faults = planted.run(planted.settings)
    places = {(f.place.part, f.place.line) for f in faults if f.kind == planted.kind and f.place}
    assert expected_place(planted) in places, faults
    assert any("// here" in str(fault) for fault in faults)


FAST = [planted for planted in PLANTED if planted.fast]


@pytest.mark.parametrize("planted", FAST, ids=lambda planted: planted.name)
def test_fast_reports_the_fault_at_its_line(planted: Planted, host: None) -> None:
    faults = planted.run(replace(planted.settings, mode="fast"))
    places = {(f.place.part, f.place.line) for f in faults if f.kind == planted.kind and f.place}
    assert expected_place(planted) in places, faults


CLEAN = [
    Planted(
        "exchange over a barrier",
        K.RACE,
        f"threadgroup float t[64];\nt[j] = x[i];\n{BARRIER}\ny[i] = t[63 - j];",
    ),
    Planted(
        "exchange within a simdgroup",
        K.RACE,
        "threadgroup float t[64];\nt[j] = x[i];\n"
        "simdgroup_barrier(mem_flags::mem_threadgroup);\ny[i] = t[j ^ 1];",
    ),
    Planted(
        "exchange through an output",
        K.RACE,
        "y[i] = x[i];\nthreadgroup_barrier(mem_flags::mem_device);\nfloat v = y[i ^ 32];\n"
        "threadgroup_barrier(mem_flags::mem_device);\ny[i] = v;",
    ),
    Planted(
        "many readers, then a writer behind a barrier",
        K.RACE,
        f"threadgroup float s;\nif (j == 0) s = x[0];\n{BARRIER}\nfloat v = s;\n{BARRIER}\n"
        "if (j == 1) s = v;\ny[i] = v;",
    ),
    Planted(
        "whole simdgroups that leave early",
        K.DIVERGENCE,
        "y[i] = 0;\nif (sg == 1) return;\ny[i] = simd_sum(x[i]);",
    ),
    Planted(
        "a function called by all",
        K.DIVERGENCE,
        "float v = x[i];\nif (j % 2) v = -v;\nv = total(v) + (j % 4 ? 1 : 0);\n"
        "if (j % 2) v += 1;\nfor (uint k = 0; k < 3; ++k) v += total(v);\ny[i] = v;",
        header="inline float total(float v) { return simd_sum(v); }",
    ),
    Planted(
        "an output that had a value", K.UNINITIALIZED, "if (i < 60) y[i] += x[i];", init_value=1.0
    ),
    Planted(
        "a variable that each group has for itself",
        K.RACE,
        f"threadgroup float t[32];\nt[j] = x[i];\n{BARRIER}\ny[i] = t[31 - j];",
        group=32,
    ),
]


@pytest.mark.parametrize("planted", CLEAN, ids=lambda planted: planted.name)
def test_correct_kernels_have_no_faults(planted: Planted, host: None) -> None:
    for seed in range(3):
        assert planted.run(Settings(seed=seed)) == ()


def test_a_race_names_both_lines(host: None) -> None:
    faults = exchange("").run(Settings())
    races = {(f.place.line, f.other.line) for f in faults if f.place and f.other}
    first = (NAMES + "threadgroup float t[64];\nt[j] = x[i];").count("\n") + 1
    assert {(first, first + 2), (first + 2, first)} & races
    assert all(f"source:{fault.other.line}" in fault.message for fault in faults if fault.other)


def test_a_race_with_several_threads_says_so(host: None) -> None:
    source = "auto p = reinterpret_cast<device atomic_uint*>(y);\n"
    source += "atomic_store_explicit(p, i, memory_order_relaxed);\nif (i == 5) y[0] = 3;\n"
    faults = Planted("", K.RACE, source, init_value=0).run(Settings())
    expected = (
        "write of output 'y' at byte 0 by thread 5 of group 0, and atomic operation by several "
    )
    assert any(f"{expected}threads, the last one 5" in fault.message for fault in faults), faults


def test_a_fault_in_a_function_names_its_callers(host: None) -> None:
    header = "float pick(const device float* p, uint i) {\n  return p[i + 9];\n}"
    (fault,) = out_of_bounds("", "\n\ny[i] = pick(x, i);", header=header).run(Settings())
    assert fault.place is not None
    assert (fault.place.part, fault.place.line) == ("header", 2)
    line = NAMES.count("\n") + 3
    assert [(caller.part, caller.line) for caller in fault.callers] == [("source", line)]


def test_offset_views_start_at_addresses_that_are_not_aligned_to_16(host: None) -> None:
    source = "auto v = reinterpret_cast<const device float4*>(x);\ny[i] = v[i / 4][i % 4];"
    aligned = Planted("", K.UNDEFINED, source)
    assert aligned.run(Settings()) == ()
    assert {fault.kind for fault in aligned.run(Settings(offset_views=True))} == {K.UNDEFINED}


def test_the_fault_that_ends_a_run_is_among_more_than_are_kept(host: None) -> None:
    reads = "".join(f"\ny[{n}] = y[{n}] + 1;" for n in range(40))
    faults = Planted("", K.OUT_OF_BOUNDS, reads + "\ny[100000] = 1;").run(Settings())
    assert {fault.kind for fault in faults} >= {K.OUT_OF_BOUNDS}
    assert len(faults) == 32
