"""What the lint refuses, and what it must not."""

import numpy as np
import pytest
from metalhost import KernelTextError, Settings, metal_kernel, using
from metalhost.lint import lint

REFUSED = {
    "double d = 1.0;": "double",
    "y[0] = std::max(1.0f, 2.0f);": "std",
    "float* p = x;": "pointer",
    "const float& r = y[0];": "reference",
    "for (int i = 0; i < 2; ++i) { auto& a = acc[i]; }": "reference",
    "auto f = [&](float a) { return a; };": "lambda",
    "g([] { return 1; });": "lambda",
    "y[0] = log1p(x[0]);": "log1p",
    "y[0] = expf(x[0]);": "exp",
    "int* p = new int;": "memory",
    "goto end;": "goto",
    "try { f(); } catch (...) {}": "exceptions",
    "metalhost::f();": "metalhost",
}


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text: str) -> None:
    problems = lint("", f"int a;\n{text}")
    assert problems
    assert REFUSED[text] in " ".join(problem.message for problem in problems)
    assert {(problem.part, problem.line) for problem in problems} == {("source", 2)}


ALLOWED = [
    "device float* p = y; const device float4* q; threadgroup float& r = t[0];",
    "thread float& r = acc[0]; const constant int* s = x_shape;",
    "int a[3] = {1, 2, 3}; y[a[0]] = x[a[1]] * b; a[i] & b;",
    "c = a * b; d = (a & b) + T(1) * n; e = f(a, T * 2);",
    "// double, std::max and [&]() {} in a comment",
    'printf_like = 1; my.new = 2; metal::fast::exp(1); "double"',
    "template <typename T> inline T f(const device T* p, thread T& q) { return p[0]; }",
    "[[unroll]] for (int i = 0; i < 2; ++i) {}",
]


@pytest.mark.parametrize("text", ALLOWED)
def test_allowed(text: str) -> None:
    assert lint(text, text) == ()


def test_a_call_refuses_and_can_be_told_not_to(host: None) -> None:
    kernel = metal_kernel("one", ["x"], ["y"], "double d = x;\ny[0] = d;")
    arguments = {"inputs": [1.0], "output_shapes": [(1,)], "output_dtypes": [np.float32]}
    sizes = {"grid": (1, 1, 1), "threadgroup": (1, 1, 1)}
    with pytest.raises(KernelTextError, match="source:1: 'double'"):
        kernel(**arguments, **sizes)
    with using(Settings(lint=False, address_spaces=False)):
        (y,) = kernel(**arguments, **sizes)
    assert y[0] == 1
