"""Lint: constructs that it rejects, and valid Metal that it accepts."""

import numpy as np
import pytest
from metalhost import KernelTextError, Settings, metal_kernel, using
from metalhost.checks.lint import lint

REJECTED = {
    "double d = 1.0;": "double",
    "y[0] = std::max(1.0f, 2.0f);": "std",
    "float* p = x;": "pointer",
    "const float& r = y[0];": "reference",
    "for (int i = 0; i < 2; ++i) { auto& a = acc[i]; }": "reference",
    "auto f = [&](float a) { return a; };": "lambda",
    "g([] { return 1; });": "lambda",
    "y[0] = erf(x[0]);": "erf",
    "y[0] = expf(x[0]);": "exp",
    "int* p = new int;": "memory",
    "goto end;": "goto",
    "try { f(); } catch (...) {}": "exceptions",
    "metalhost::f();": "metalhost",
    "static int n = 0;": "outlives",
    "static const float t[2] = {1, 2};": "outlives",
    "struct S { static constexpr int N = 3; };": "outlives",
    "if (a) { static int n{1}; }": "outlives",
}
IN_HEADER = [
    "int counter = 0;",
    "float table[2] = {1, 2};",
    "constexpr int N = 3;",
    "namespace n { const float pi{3}; }",
    "unsigned int a, b;",
    "inline int f() { return 1; }  float4 v;",
    "metal::vec<float, 4> v = f(1 < 2);",
]


@pytest.mark.parametrize("text", REJECTED)
def test_rejected_in_the_body(text: str) -> None:
    problems = lint("", f"int a;\n{text}")
    assert problems
    assert REJECTED[text] in " ".join(problem.message for problem in problems)
    assert {(problem.part, problem.line) for problem in problems} == {("source", 2)}


@pytest.mark.parametrize("text", IN_HEADER)
def test_global_variables_outside_of_constant_are_rejected(text: str) -> None:
    (problem,) = lint(f"int f(int a);\n{text}", text)
    assert (problem.part, problem.line) == ("header", 2)
    assert "'constant'" in problem.message


POINTERS = [
    ("", "T* p = x;", "template <typename T, bool B = true> [[kernel]] void k(", "source"),
    ("template <int N, class T> void f(T* p) {}", "", "", "header"),
    ("template <typename T = half> void f(const T& p) {}", "", "", "header"),
]


@pytest.mark.parametrize(("header", "source", "signature", "part"), POINTERS)
def test_pointers_to_types_of_the_kernel_are_rejected(
    header: str, source: str, signature: str, part: str
) -> None:
    (problem,) = lint(header, source, signature)
    assert problem.part == part
    assert "without an address space" in problem.message


TEMPLATE = "template <typename T> T f(T a, T b) { return a + b; }"


@pytest.mark.parametrize("name", ["T", "U"])
def test_products_of_constants_are_no_pointers(name: str) -> None:
    source = f"const uint {name} = x_shape[0]; y[i] = x[({name} & i)] + f({name} * i, 2);"
    assert lint(TEMPLATE, source, "template <int U> [[kernel]] void k(") == ()


OWN_FUNCTIONS = [
    "inline float erf(float v) { return v * (v + 1); }",
    "template <typename T> static T erf(T v) {\n  return v;\n}",
    "struct S { float erf(float v) const { return v; } };",
    "#define erf(v) (v)",
]


@pytest.mark.parametrize("header", OWN_FUNCTIONS)
def test_calls_of_own_functions_are_accepted(header: str) -> None:
    assert lint(header, "y[0] = erf(x[0]);") == ()
    (problem,) = lint(f"{header}\nfloat g(float v) {{ return expf(v); }}", "")
    assert "'expf'" in problem.message


ACCEPTED = [
    "device float* p = y; const device float4* q; threadgroup float& r = t[0];",
    "thread float& r = acc[0]; const constant int* s = x_shape;",
    "int a[3] = {1, 2, 3}; y[a[0]] = x[a[1]] * b; a[i] & b;",
    "c = a * b; d = (a & b) + T(1) * n; e = f(a, T * 2);",
    "// double, std::max and [&]() {} in a comment",
    "uint free = 0; y[free] = free; float erf = 1, log1p = erf; assert = log1p;",
    'printf_like = 1; my.new = 2; metal::fast::exp(1); "double"',
    "template <typename T> inline T f(const device T* p, thread T& q) { return p[0]; }",
    "[[unroll]] for (int i = 0; i < 2; ++i) {}",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_accepted_in_functions(text: str) -> None:
    assert lint(f"inline void f() {{\n{text}\n}}", text) == ()


DEFINITIONS = [
    "constant float t[2] = {1, 2}; static constant constexpr int N = 3;",
    "const constant bool B = A < 2; struct T;",
    "#define CONST static constant constexpr\nCONST int a = 1; struct S { CONST int n = 2; };",
    "struct S { float a, b[4]; uint f() const { uint n = 0; { float m{1}; } return n; } };",
    "template <int N = 3> struct S; enum E { A, B = 2 }; using V = vec<T, 4>; typedef float F; ;",
    "static inline float f(float a, int b = 3); inline void g() { int n = 0; n = 1; n += 1; }",
    "namespace n { template <typename T> static T f(T a) { do { a += 1; } while (a < 3); } }",
    'bool operator==(A a, A b); A f(float (&t)[2]); static_assert(N == 3, "three");',
    "float f(int a) { switch (a) { case 0: a = 1; default: { a = 2; } } float t[] = {1}; }",
]


@pytest.mark.parametrize("text", DEFINITIONS)
def test_accepted_definitions(text: str) -> None:
    assert lint(text, "") == ()


def test_a_call_runs_the_lint_unless_the_settings_disable_it(host: None) -> None:
    kernel = metal_kernel("one", ["x"], ["y"], "double d = x;\ny[0] = d;")

    def output() -> object:
        (y,) = kernel(
            inputs=[1.0],
            output_shapes=[(1,)],
            output_dtypes=[np.float32],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
        )
        return y[0]

    with pytest.raises(KernelTextError, match="source:1: 'double'"):
        output()
    with using(Settings(lint=False, address_spaces=False)):
        assert output() == 1
