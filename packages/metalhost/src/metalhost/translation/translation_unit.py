"""C++ translation units of a kernel: one to execute, and one for clang's type checks.

The translation keeps all line numbers, and `#line` names the parts of the text. Messages of
compilers and addresses in reports therefore refer to the lines of the kernel.
"""

import functools

from metalhost.text.kernel_text import KernelText
from metalhost.text.problem import KernelTextError, Problem
from metalhost.translation.rewrites import (
    Rewrite,
    constants,
    literals,
    members_like_swizzles,
    swizzles,
    vector_constructors,
    with_macros,
)
from metalhost.translation.threadgroup_variables import ThreadgroupTranslation
from metalhost.translation.tokens import join, tokenize


@functools.lru_cache(maxsize=256)
def unit_to_execute(text: KernelText) -> str:
    """Return the unit to execute, with an entry point and without address spaces.

    Raises:
        KernelTextError: if a use of `threadgroup` is not supported.
    """
    entry_point = (
        "void metalhost::kernel_entry(void* const* buffers, const Coordinates& at) {\n"
        f"  {text.instance}({', '.join(text.arguments)});\n}}\n"
    )
    members = members_like_swizzles(text.header) | members_like_swizzles(text.source)
    vectors = functools.partial(swizzles, members=members) if members else swizzles
    return _translate(text, (literals, constants, vectors)) + entry_point


@functools.lru_cache(maxsize=256)
def unit_to_check(text: KernelText) -> str:
    """Return the unit for clang, with address spaces. The kernel is instantiated, not called.

    Raises:
        KernelTextError: if a use of `threadgroup` is not supported.
    """
    instance = f"auto* metalhost_instance = &{text.instance};\n"
    return _translate(text, (literals, vector_constructors)) + instance


def _translate(text: KernelText, rewrites: tuple[Rewrite, ...]) -> str:
    parts = (("header", text.header), ("signature", text.prologue), ("source", text.source))
    unit = '#include "kernel.h"\n'
    problems: list[Problem] = []
    for name, part in parts:
        translated, found = _translate_part(name, part, rewrites)
        unit += f'#line 1 "<{name}>"\n{translated}\n'
        problems += found
    if problems:
        raise KernelTextError(text.name, [text.located(problem) for problem in problems])
    return f'{unit}#line 1 "<end>"\n}}\n'


@functools.lru_cache(maxsize=256)  # many kernels share a header
def _translate_part(
    name: str, text: str, rewrites: tuple[Rewrite, ...]
) -> tuple[str, tuple[Problem, ...]]:
    """Return the translation of a part, and the uses of `threadgroup` that are not supported."""
    tokens = tokenize(text)
    for rewrite in rewrites:
        tokens = with_macros(rewrite)(tokens)
    if name == "signature":
        return join(tokens), ()
    threadgroup = ThreadgroupTranslation(name, in_body=name == "source")
    return join(threadgroup.apply(tokens)), tuple(threadgroup.problems)
