"""Rewrites of Metal syntax: literals, `constant`, swizzles and vector constructors."""

import pytest
from metalhost.translation.rewrites import (
    constants,
    literals,
    members_like_swizzles,
    swizzles,
    vector_constructors,
    with_macros,
)
from metalhost.translation.tokens import Token, join, tokenize

CASES = [
    (literals, "1.5h + 2.h - .5bf", "half(1.5f) + half(2.f) - bfloat(.5f)"),
    (
        literals,
        "0.5 * 1e-5 + 1. + 2.0f + 3 + 0x1F + 7u + 1e3f",
        "0.5f * 1e-5f + 1.f + 2.0f + 3 + 0x1F + 7u + 1e3f",
    ),
    (literals, "0x1.8p1 + 0x.4P-2f + 0x3p2h + 0xEp", "0x1.8p1f + 0x.4P-2f + half(0x3p2f) + 0xEp"),
    (literals, 'x1.h; "1.5" // 1.5', 'x1.h; "1.5" // 1.5'),
    (literals, "#define PI 3.14", "#define PI 3.14f"),
    (literals, "  # define PI 3.14", "  # define PI 3.14f"),
    (literals, "#defined 3.14", "#defined 3.14"),
    (constants, "constant float t[2] = {1, 2};", "const float t[2] = {1, 2};"),
    (constants, "const constant int& n", "const  int& n"),
    (constants, "constant constexpr int Q = 3;", " constexpr int Q = 3;"),
    (constants, "my_constant = constants;", "my_constant = constants;"),
    (swizzles, "a.xy + b.zyx", "a[metal::swizzle<0, 1>()] + b[metal::swizzle<2, 1, 0>()]"),
    (
        swizzles,
        "a.rgb = f(b).bgr;",
        "a[metal::swizzled<0, 1, 2>()] = f(b)[metal::swizzle<2, 1, 0>()];",
    ),
    (
        swizzles,
        "a.xw += b.wzyx.xy;",
        "a[metal::swizzled<0, 3>()] += b[metal::swizzle<3, 2, 1, 0>()][metal::swizzle<0, 1>()];",
    ),
    (swizzles, "a.x = a.y; a.xy(); a.xy == b", "a.x = a.y; a.xy(); a[metal::swizzle<0, 1>()] == b"),
    (swizzles, "p->xy = q->x;", "p->operator[](metal::swizzled<0, 1>()) = q->x;"),
    (
        swizzles,
        "a.xy &= 3; a.zw <<= b.x;",
        "a[metal::swizzled<0, 1>()] &= 3; a[metal::swizzled<2, 3>()] <<= b.x;",
    ),
    (swizzles, "#define LOW(v) (v.xy)", "#define LOW(v) (v[metal::swizzle<0, 1>()])"),
    (vector_constructors, "float4(a, b)", "make<float4>(a, b)"),
    (vector_constructors, "metal::half2(1)", "metal::make<half2>(1)"),
    (vector_constructors, "vec<T, 4>(a).x", "make<vec<T, 4>>(a).x"),
    (vector_constructors, "float4 a; f.float4(1)", "float4 a; f.float4(1)"),
    (vector_constructors, "using V = vec<T, 4>; V(a)", "using V = vec<T, 4>; make<V>(a)"),
    (vector_constructors, "typedef float2 P; P(1, 2)", "typedef float2 P; make<P>(1, 2)"),
]


@pytest.mark.parametrize(("rewrite", "text", "expected"), CASES)
def test_rewrite(rewrite: object, text: str, expected: str) -> None:
    assert callable(rewrite)
    assert join(with_macros(rewrite)(tokenize(text))) == expected


MEMBERS = {
    "struct S { float ab, xy[2]; int bg = 3; };": {"ab", "xy", "bg"},
    "template <class T> struct alignas(8) S : B<T> {\n  T rgb{0};\n};": {"rgb"},
    "struct S { float f(float2 xy, int a) { float2 zw = xy; return v.xy; } };": set(),
    "float2 xy = v.xy; struct S { float x; }; float2 zw;": set(),
    "template <class T> void f(T xy) { T zw; }": set(),
}


@pytest.mark.parametrize("text", MEMBERS)
def test_members_named_like_swizzles(text: str) -> None:
    members = members_like_swizzles(text)
    assert members == MEMBERS[text]
    kept = [Token("word", "s", 1), Token("symbol", ".", 1), *(Token("word", m, 1) for m in members)]
    assert swizzles(kept, members) == kept
