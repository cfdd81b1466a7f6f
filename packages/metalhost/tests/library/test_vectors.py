"""Vectors: components, constructors, swizzles, operators, packed vectors, geometric functions."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from metalhost import KernelTextError, Settings
from numpy.typing import NDArray

Evaluate = Callable[..., NDArray[np.generic]]
A = "float4 a = float4(x[0], x[1], x[2], x[3]);"
X = np.array([1, 2, 3, 4, 5, 6, 7, 8], np.float32)


def expect(evaluate: Evaluate, calls: Mapping[str, float], setup: str = "") -> None:
    """Compare expressions over `X`, in one thread, with the expected numbers."""
    results = evaluate(list(calls), threads=1, x=X, setup=setup)
    np.testing.assert_array_equal(results[0], np.array(list(calls.values()), np.float32))


def test_components_and_constructors(evaluate: Evaluate) -> None:
    expect(
        evaluate,
        {
            "a.x": 1,
            "a.y": 2,
            "a.z": 3,
            "a.w": 4,
            "a.r + a.g + a.b + a.a": 10,
            "a[2]": 3,
            "float4(7).w": 7,
            "float4(a.xy, 8, 9).z": 8,
            "float4(1, a.xyz).w": 3,
            "float4(float2(1, 2), float2(3, 4)).w": 4,
            "float3(a.zw, 5).y": 4,
            "float(int4(a * 1.5f).y)": 3,
            "float(half4(a).w)": 4,
            "float(bfloat2(a.zw).y)": 4,
            "metal::vec<float, 2>(8, 9).y": 9,
            "float(sizeof(float3))": 16,
            "float(sizeof(half3))": 8,
            "float(sizeof(packed_float3))": 12,
        },
        setup=A,
    )


def test_swizzles(evaluate: Evaluate) -> None:
    setup = f"""{A}
    float4 b = a;
    b.xy = a.yx;
    b.zw += float2(10, 20);
    b.wz *= 2;
    float3 c = a.bgr;
    c.rg -= a.xy;
    float2 d = a.wzyx.yz;
    """
    expect(
        evaluate,
        {
            **{f"b.{name}": value for name, value in zip("xyzw", [2, 1, 26, 48], strict=True)},
            **{f"c.{name}": value for name, value in zip("xyz", [2, 0, 1], strict=True)},
            "d.x": 3,
            "d.y": 2,
            "dot(a.xyz, a.yzw)": 2 + 6 + 12,
        },
        setup=setup,
    )


def test_swizzles_through_pointers_and_of_integers(evaluate: Evaluate) -> None:
    setup = """
    int4 v = int4(1, 2, 3, 4);
    thread int4* p = &v;
    p->xy = p->yx + 4;
    v.yz &= 6;
    v.zw <<= 1;
    v.xw %= 7;
    v.xy |= int2(8, 1);
    v.xy ^= 1;
    v.xy >>= 1;
    """
    calls = {"v.x": 7, "v.y": 2, "v.z": 4, "v.w": 1, "p->zw.y": 1}
    results = evaluate(list(calls), np.int32, threads=1, setup=setup)
    np.testing.assert_array_equal(results[0], list(calls.values()))


def test_a_member_that_is_named_like_a_swizzle(evaluate: Evaluate) -> None:
    header = "struct Pair { float ab; float2 v; };\n"
    setup = "Pair p; p.ab = 3; p.v = float2(1, 2); thread Pair* q = &p; q->ab += 1;"
    results = evaluate(["p.ab", "p.v.yx.x"], threads=1, header=header, setup=setup)
    np.testing.assert_array_equal(results[0], [4, 2])


def test_operators(evaluate: Evaluate) -> None:
    setup = f"""{A}
    int4 n = int4(a), m = int4(5, 6, 7, 8);
    bool4 less = select(bool4(false), bool4(true), bool4(true, false, true, false));
    float4 s = a;
    s += 1; s -= float4(0, 1, 0, 1); s *= 2; s /= 4;
    int4 t = m;
    t %= 4; t <<= 2; t |= 1; t ^= 3; t &= 14; t >>= 1;
    """
    expect(
        evaluate,
        {
            "(a + 1).x": 2,
            "(2 * a).y": 4,
            "(a - a.wzyx).x": -3,
            "(a / 2).w": 2,
            "(-a).z": -3,
            "float((m % n).z)": 1,
            "float((m & 6).x)": 4,
            "float((m | 8).x)": 13,
            "float((m ^ 1).x)": 4,
            "float((n << 2).w)": 16,
            "float((m >> 1).w)": 4,
            "float((~n).x)": -2,
            "s.x": 1,
            "s.w": 2,
            **{f"float(t.{c})": v for c, v in zip("xyzw", [3, 5, 7, 1], strict=True)},
            "float(all(a == a))": 1,
            "float(any(a != a))": 0,
            "float(any(a < 2))": 1,
            "float(all(a <= 3))": 0,
            "float(any(a > 3))": 1,
            "float(all(a >= 1))": 1,
            "float(any(!less))": 1,
            "float(any(less && !less))": 0,
            "float(all(less || !less))": 1,
            "select(a, -a, a > 2).z": -3,
            "select(a, -a, a > 2).y": 2,
        },
        setup=setup,
    )


def test_geometric_functions(evaluate: Evaluate) -> None:
    setup = (
        f"{A} float3 u = float3(1, 2, 2), v = float3(4, 6, 2); float4 c4 = clamp(a, 2.0f, 3.0f);"
    )
    expect(
        evaluate,
        {
            "dot(a, a)": 30,
            "float(dot(half2(a.xy), half2(a.zw)))": 11,
            "length(u)": 3,
            "length_squared(u)": 9,
            "distance(u, v)": 5,
            "distance_squared(u, v)": 25,
            "cross(u, v).x": 2 * 2 - 2 * 6,
            "cross(u, v).y": 2 * 4 - 1 * 2,
            "cross(u, v).z": 1 * 6 - 2 * 4,
            "normalize(float2(3, 0)).x": 1,
            "min(a, 5 - a).w": 1,
            "max(a, 5 - a).x": 4,
            "abs(-a).w": 4,
            "c4.x + c4.y + c4.z + c4.w": 2 + 2 + 3 + 3,
            "mix(a, -a, float4(0.5)).x": 0,
        },
        setup=setup,
    )


@pytest.mark.parametrize("address_spaces", [True, False])
@pytest.mark.parametrize("call", ["dot(n, n)", "length(n)", "normalize(n).x", "cross(n, n).x"])
def test_geometric_functions_of_integers_are_rejected(
    call: str, address_spaces: bool, evaluate: Evaluate
) -> None:
    settings = Settings(address_spaces=address_spaces)
    with pytest.raises(KernelTextError, match="no matching function"):
        evaluate([call], setup="int3 n = int3(1);", settings=settings)


def test_loads_of_vectors_and_packed_vectors(evaluate: Evaluate) -> None:
    setup = """
    const device packed_float3* p = reinterpret_cast<const device packed_float3*>(x + 1);
    const device float4* q = reinterpret_cast<const device float4*>(x);
    packed_float3 r = p[1];
    float3 s = r;
    packed_float2 w = float2(8, 9);
    """
    calls = {"s.x": 5, "s.z": 7, "q[1].y": 6, "r[1]": 6, "w[1]": 9}
    expect(evaluate, calls, setup=setup)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("char", np.int8), ("ushort", np.uint16), ("int", np.int32), ("ulong", np.uint64)],
)
def test_vectors_of_integers(kind: str, dtype: type[np.generic], evaluate: Evaluate) -> None:
    x = np.arange(1, 9).astype(dtype)
    setup = f"{kind}4 v = {kind}4(x[0], x[1], x[2], x[3]); v *= v.wzyx; v = min(v, {kind}4(5));"
    results = evaluate([f"v.{c}" for c in "xyzw"], dtype, threads=1, setup=setup, x=x)
    np.testing.assert_array_equal(results[0], [4, 5, 5, 4])


def test_as_type(evaluate: Evaluate) -> None:
    calls = {
        "as_type<float>(0x40490fdbu)": float(np.float32(np.pi)),
        "float(as_type<ushort>(half(1.0f)))": 0x3C00,
        "float(as_type<ushort>(bfloat(1.0f)))": 0x3F80,
        "float(bfloat16_to_uint16(bfloat16_t(2.0f)))": 0x4000,
        "float(uint16_to_bfloat16(0x4000))": 2,
        "float(as_type<half2>(0x40003c00u).y)": 2,
    }
    expect(evaluate, calls)


def test_elem_to_loc(evaluate: Evaluate) -> None:
    # elem_to_loc finds an element by shape and strides, if the input is not row-contiguous.
    results = evaluate(
        ["x[elem_to_loc(i, x_shape, x_strides, x_ndim)]"],
        threads=24,
        x=np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    )
    np.testing.assert_array_equal(results[:, 0], np.arange(24))
