"""Each `threadgroup` is part of a pointer or reference type, a translated variable, or an error."""

import re

import pytest
from metalhost import KernelTextError, metal_kernel
from metalhost.text.problem import Problem
from metalhost.translation.threadgroup_variables import SPACE, ThreadgroupTranslation
from metalhost.translation.tokens import join, tokenize


def translate(text: str, in_body: bool = True) -> tuple[str, list[Problem]]:
    translation = ThreadgroupTranslation("source", in_body)
    return join(translation.apply(tokenize(text))), translation.problems


IN_TYPES = [
    "threadgroup float* p = t;",
    "const threadgroup float4* p;",
    "threadgroup const float& r = t[0];",
    "void f(threadgroup float* p, const threadgroup Tile<T, 8>& q) {}",
    "auto p = reinterpret_cast<threadgroup float4*>(t);",
    "auto p = (threadgroup vec<T, 4>*)t;",
    "load<threadgroup T>(p);",
    "load<float, threadgroup T>(p);",
    "is_same<threadgroup T, float>();",
    "threadgroup_barrier(mem_flags::mem_threadgroup);",
    "// threadgroup float t;",
    "/* threadgroup float t; */",
]


@pytest.mark.parametrize("text", IN_TYPES)
def test_pointers_and_references_keep_their_address_space(text: str) -> None:
    kept = text if text.startswith(("//", "/*")) else re.sub(r"\bthreadgroup\b", SPACE, text)
    assert translate(text) == (kept, [])
    assert translate(text, in_body=False) == (kept, [])


def declared(number: int, name: str, kind: str, dimensions: str = "") -> str:
    alias = f"metalhost_type_{number}"
    return (
        f"typedef {kind} {alias}{dimensions}; {SPACE} {alias}& {name} = "
        f'metal::threadgroup_variable<{alias}>({number}, "{name}");'
    )


TRANSLATED = {
    "threadgroup float t[8];": declared(0, "t", "float", "[ 8 ]"),
    "threadgroup unsigned int n;": declared(0, "n", "unsigned int"),
    "threadgroup metal::vec<T, 4> v[N * 2];": declared(
        0, "v", "metal :: vec < T , 4 >", "[ N * 2 ]"
    ),
    "threadgroup T a[B * (D + pad)], b[2][N], c;": " ".join(
        [
            declared(0, "a", "T", "[ B * ( D + pad ) ]"),
            declared(1, "b", "T", "[ 2 ] [ N ]"),
            declared(2, "c", "T"),
        ]
    ),
    "threadgroup float t[N < 4 ? 4 : N];": declared(0, "t", "float", "[ N < 4 ? 4 : N ]"),
    "threadgroup float t[A == B ? 1 : 2];": declared(0, "t", "float", "[ A == B ? 1 : 2 ]"),
    "threadgroup float t[2] = {0, 1}, u = 3;": " ".join(
        [
            declared(0, "t", "float", "[ 2 ]"),
            declared(1, "u", "float"),
        ]
    ),
    "threadgroup atomic_int n; { threadgroup int n; }": (
        f"{declared(0, 'n', 'atomic_int')} {{ {declared(1, 'n', 'int')} }}"
    ),
    "struct S { int a; }; threadgroup S s; if (N < 3) { threadgroup int n; }": (
        f"struct S {{ int a; }}; {declared(0, 's', 'S')} if (N < 3) {{ {declared(1, 'n', 'int')} }}"
    ),
}


@pytest.mark.parametrize("text", TRANSLATED)
def test_variables_are_translated(text: str) -> None:
    assert translate(text) == (TRANSLATED[text], [])


def test_line_numbers_do_not_change() -> None:
    text = "int a;\nthreadgroup float t[\n  8], // one\n  u;\nint b;"
    translated, problems = translate(text)
    assert not problems
    assert translated.count("\n") == text.count("\n")
    assert translated.split("\n")[-1] == "int b;"


REJECTED = [
    "struct S { threadgroup float t; };",
    "struct S { int a; float f() const { threadgroup float t; return t; } };",
    "template <class T> union alignas(16) U { int a; threadgroup float t[2]; };",
    "typedef threadgroup float tile[8]; tile t;",
    "using tile = threadgroup float;",
    "const threadgroup float t = 1;",
    "static threadgroup float t;",
    "alignas(16) threadgroup float t[4];",
    "if (x) threadgroup float t;",
    "threadgroup float t(1);",
    "threadgroup float (&r)[4] = t;",
    "threadgroup float t[4], *p;",
    "threadgroup float",
    "threadgroup t;",
    "void f(threadgroup float t) {}",
    "kernel void k(threadgroup float* t [[threadgroup(0)]]) {}",
    "#define TILE threadgroup float t[8]",
    "threadgroup float t[\n#if A\n8\n#endif\n];",
    "for (threadgroup int i = 0;;) {}",
]


@pytest.mark.parametrize("text", REJECTED)
def test_unsupported_uses_are_rejected(text: str) -> None:
    _, problems = translate(text)
    assert problems
    assert all(problem.line >= 1 and "threadgroup" in str(problem) for problem in problems)


@pytest.mark.parametrize("text", TRANSLATED)
def test_variables_outside_of_the_body_are_rejected(text: str) -> None:
    _, problems = translate(f"inline void f() {{ {text} }}", in_body=False)
    assert "only in the body" in problems[0].message


def test_a_threadgroup_pasted_together_by_macros_is_an_error(host: None) -> None:
    header = "#define JOINED(a, b) a##b\n#define TILE JOINED(thread, group) float t[4]\n"
    kernel = metal_kernel("hidden", [], ["y"], "TILE;\nt[0] = 1;\ny[0] = t[0];", header)
    with pytest.raises(KernelTextError, match="'threadgroup'"):
        kernel(
            inputs=[],
            output_shapes=[(1,)],
            output_dtypes=["float32"],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
        )
