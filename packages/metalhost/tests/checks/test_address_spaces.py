"""Type checks by clang: errors that it finds, and valid Metal that it accepts."""

import shutil

import ml_dtypes
import numpy as np
import pytest
from metalhost import KernelTextError, Problem, metal_kernel
from metalhost.checks import address_spaces


@pytest.fixture(autouse=True)
def clang() -> None:
    if address_spaces.clang() is None:
        pytest.skip("no clang with vectors of bfloat on this machine: `apt-get install clang-19`")


def problems(source: str, header: str = "") -> list[Problem]:
    kernel = metal_kernel("checked", ["x"], ["y"], source, header)
    return kernel.problems(inputs=[np.zeros(64, np.float32)], output_dtypes=["float32"])


READ = "inline float f(const device float* p) { return p[0]; }"
REJECTED = {
    "auto p = &x[0];\nthread float* q = p;": 2,
    "device float* p = y;\nthreadgroup float t[4];\np = t;": 3,
    "const constant float* p = x;": 1,
    "threadgroup float t[2];\nt[0] = 0;\ny[0] = f(t);": 3,
    "float t[2];\ny[0] = f(t);": 2,
    "x[0] = 1;": 1,
    "y[0] = max(x[0], 0);": 1,
    "uint i = 3;\nint n = 4;\ny[0] = min(i, n);": 3,
    "float4 a = float4(1, 2, 3);": 1,
    "uint i = thread_position_in_grid;": 1,
    "uint i = threadgroup_position_in_gird.x;": 1,
    "int n = int(x[0]);\nfloat a[n];": 2,
    "float v;\ny[0] = v;": 2,
    "simdgroup_float8x8 m;\nfloat t[64];\nsimdgroup_store(m, t, 8);": 3,
    "auto a = reinterpret_cast<const device float4*>(x);\nthreadgroup float4* b = a;": 2,
    "auto a = reinterpret_cast<threadgroup float4*>(y);": 1,
    "y[0] = simd_sum(ulong(1));": 1,
    "threadgroup atomic_float s;\natomic_store_explicit(&s, 0.0, memory_order_relaxed);": 2,
    "auto a = reinterpret_cast<device atomic_ulong*>(y);": 1,
}


@pytest.mark.parametrize("source", REJECTED)
def test_rejected(source: str) -> None:
    found = problems(source, READ)
    assert ("source", REJECTED[source]) in {(problem.part, problem.line) for problem in found}


def test_text_that_cannot_be_translated_is_a_problem() -> None:
    assert [each.line for each in problems("\nthreadgroup float t[4](3);")] == [2]


def test_names_of_a_template_are_known() -> None:
    kernel = metal_kernel("checked", ["x"], ["y"], "T v = x[0] + N; y[0] = v;")
    found = kernel.problems(
        inputs=[np.zeros(64, np.float32)],
        output_dtypes=["float32"],
        template=[("T", np.float32), ("N", 3)],
    )
    assert found == []


ACCEPTED = [
    "threadgroup float t[4], s; threadgroup float* p = t; p[0] = x[0]; s = 1; y[0] = p[0] + s;",
    "auto v = reinterpret_cast<const device float4*>(x); y[0] = dot(v[0], float4(1, 2, 3, 4));",
    "y[0] = f(x) + max(x[0], 0.0) + f(y);",
    "y[0] = table[1] + SIZE; const constant int* s = x_shape; y[1] = s[0];",
    "bfloat b = bfloat(1.5bf); half h = 2.5h; y[0] = b + h; bfloat4 c = bfloat4(b); b = c.x;",
    "simdgroup_matrix<bfloat, 8, 8> a; simdgroup_float8x8 c = "
    "make_filled_simdgroup_matrix<float, 8, 8>(0.0f); a = simdgroup_bfloat8x8(bfloat(0));"
    "simdgroup_multiply_accumulate(c, a, a, c); simdgroup_store(c, y, 8);",
    "float2 c = select(float2(1), float2(2), float2(0) < float2(1)); if (any(c > 1)) y[0] = c.x;",
    "using V = vec<float, 4>; V v = V(1, 2, 3, 4); y[0] = v.wzyx.xy.y + vec<half, 2>(1, 2).x;",
    "y[0] = simd_sum(float2(1)).x + simd_shuffle_down(x[0], 1) + quad_sum(x[1]) + simd_sum(1.h);",
    "auto p = reinterpret_cast<const device packed_float3*>(x); float3 q = p[1]; y[0] = q.x;",
    "y[0] = Limits<float>::min + numeric_limits<half>::max() + as_type<float>(1u) + M_PI_F;",
    "auto a = reinterpret_cast<device atomic_uint*>(y); "
    "atomic_fetch_add_explicit(a, 1, memory_order_relaxed);",
    "y[0] = simd_shuffle(true, 1) + simd_shuffle_down(1ul, 1) + simd_shuffle_up(long(1), 1);",
    "fill(y, 1.0f); threadgroup float t[2]; t[1] = 2; y[2] = second(t);",
]
HEADER = f"""{READ}
constant float table[2] = {{1, 2}};
constant constexpr int SIZE = 3;
template <class T> void fill(device T* p, T value) {{ p[0] = value; p[1] = T(table[0]); }}
template <class T> float second(threadgroup T* p) {{ return p[1]; }}
"""


@pytest.mark.parametrize("source", ACCEPTED)
def test_accepted(source: str) -> None:
    assert problems(source, HEADER) == []


def test_a_call_in_mode_check_runs_the_type_checks(host: None) -> None:
    kernel = metal_kernel("mixed", ["x"], ["y"], "threadgroup float* p = y;\ny[0] = p[0];")
    with pytest.raises(KernelTextError, match="source:1"):
        kernel(
            inputs=[np.zeros(64, ml_dtypes.bfloat16)],
            output_shapes=[(1,)],
            output_dtypes=[np.float32],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
        )


def test_clang_19_is_usable() -> None:
    if shutil.which("clang++-19") is None:
        pytest.skip("clang 19 is not installed; only for this version is the answer known")
    assert address_spaces.clang() is not None
