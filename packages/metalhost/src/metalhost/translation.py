"""From a kernel's text to translation units: one to run, and one for clang to look at.

Lines stay where they are, and `#line` names their part, so that what compilers and reports say of
the translation is true of the text.
"""

from __future__ import annotations

import functools

from metalhost.dialect import (
    Pass,
    constants,
    literals,
    swizzles,
    vector_constructors,
    with_macros,
)
from metalhost.kernel_text import KernelText
from metalhost.problem import KernelTextError, Problem
from metalhost.threadgroup import ThreadgroupTranslation
from metalhost.tokens import join, tokenize


@functools.lru_cache(maxsize=256)
def unit_to_run(text: KernelText) -> str:
    """For execution: address spaces carry no meaning, and an entry point is added.

    Raises:
        KernelTextError: if a `threadgroup` is not understood.
    """
    entry = (
        "void metalhost::kernel_entry(void* const* buffers, const Coordinates& at) {\n"
        f"  {text.instance}({', '.join(text.arguments)});\n}}\n"
    )
    return _translated(text, (literals, constants, swizzles)) + entry


@functools.lru_cache(maxsize=256)
def unit_to_check(text: KernelText) -> str:
    """For clang's eyes only: with address spaces, instantiated but not called.

    Raises:
        KernelTextError: if a `threadgroup` is not understood.
    """
    instantiated = f"auto* metalhost_instance = &{text.instance};\n"
    return _translated(text, (literals, vector_constructors)) + instantiated


def _translated(text: KernelText, passes: tuple[Pass, ...]) -> str:
    parts = (("header", text.header), ("signature", text.before), ("source", text.source))
    unit = '#include "kernel.h"\n'
    refused: list[Problem] = []
    for name, part in parts:
        translated, problems = _part(name, part, passes)
        unit += f'#line 1 "<{name}>"\n{translated}\n'
        refused += problems
    if refused:
        raise KernelTextError(text.name, [text.located(problem) for problem in refused])
    return f'{unit}#line 1 "<end>"\n}}\n'


@functools.lru_cache(maxsize=256)  # many kernels have a header in common
def _part(name: str, text: str, passes: tuple[Pass, ...]) -> tuple[str, tuple[Problem, ...]]:
    """The translation of a part, and what of it was refused."""
    tokens = tokenize(text)
    for one in passes:
        tokens = with_macros(one)(tokens)
    if name == "signature":
        return join(tokens), ()
    threadgroup = ThreadgroupTranslation(name, in_body=name == "source")
    return join(threadgroup.apply(tokens)), tuple(threadgroup.problems)
