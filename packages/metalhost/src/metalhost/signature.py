"""The function that MLX writes around a kernel's body, rebuilt.

MLX generates the parameters of a kernel from the arguments of each call: a scalar is a reference,
an array of fewer than eight elements is in the constant address space, the shape of `x` is a
parameter where the body says `x_shape`, and so on. A test compares the text with MLX's own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from metalhost.arrays import Input
from metalhost.attributes import ATTRIBUTES, Attribute
from metalhost.element_type import TYPES, ElementType, element_type
from metalhost.problem import Problem

SMALL = 8  # elements; arrays of fewer are constants

Template = Sequence[tuple[str, object]]


@dataclass(frozen=True)
class Parameter:
    """A buffer of the kernel.

    Attributes:
        name: in the text.
        type: of its elements.
        declaration: in the signature, without its number.
        pointee: what the host has behind the pointer.
        is_reference: whether the kernel takes it by reference.
        data: of an input or its shape, strides or number of axes; None for an output.
        is_argument: whether it is an input or output itself.
    """

    name: str
    type: ElementType
    declaration: str
    pointee: str
    is_reference: bool
    data: Input | None
    is_argument: bool = False


@dataclass(frozen=True)
class Signature:
    """The text around a body.

    Attributes:
        function: the name of the kernel.
        instance: the same with its template arguments.
        parameters: the buffers, in order.
        attributes: the other parameters, in order.
        before: what stands between the header and the body.
        after: what stands behind the body.
    """

    function: str
    instance: str
    parameters: tuple[Parameter, ...]
    attributes: tuple[Attribute, ...]
    before: str
    after: str


def signature(
    name: str,
    source: str,
    inputs: Sequence[tuple[str, Input]],
    outputs: Sequence[tuple[str, ElementType]],
    template: Template = (),
    atomic_outputs: bool = False,
) -> Signature:
    """What MLX 0.32 writes for these arguments."""
    template_parameters, values = _template(template)
    arguments = f"<{', '.join(values)}>" if values else ""
    function = _function_name(name, arguments, inputs, outputs)
    parameters = [part for named in inputs for part in _of_input(*named, source)]
    parameters += [_of_output(*named, atomic_outputs) for named in outputs]
    attributes = tuple(a for a in ATTRIBUTES if a.name in source)
    lines = [f"  {p.declaration} [[buffer({i})]]" for i, p in enumerate(parameters)]
    lines += [f"  {a.type} {a.name} [[{a.name}]]" for a in attributes]
    head = f"template <{', '.join(template_parameters)}>\n" if values else ""
    instance = function + arguments
    after = "\n}\n"
    if values:
        after += (
            f'\ntemplate [[host_name("{function}")]] [[kernel]] decltype({instance}) {instance};\n'
        )
    return Signature(
        function=function,
        instance=instance,
        parameters=tuple(parameters),
        attributes=attributes,
        before=f"{head}[[kernel]] void {function}(\n" + ",\n".join(lines) + ") {\n",
        after=after,
    )


def signature_problems(around: Signature) -> list[Problem]:
    """Where MLX 0.32 would write a signature that no compiler takes: it closes it too early."""
    outputs = sum(parameter.data is None for parameter in around.parameters)
    described = any(p.data is not None and not p.is_argument for p in around.parameters)
    if around.attributes or outputs < 2 or not described:
        return []
    message = "MLX needs an attribute, such as thread_position_in_grid, in a kernel with several"
    return [Problem("source", 1, f"{message} outputs and the shape, strides or ndim of an input")]


def _template(template: Template) -> tuple[list[str], list[str]]:
    parameters, values = [], []
    for name, value in template:
        if isinstance(value, bool):
            parameters.append(f"bool {name}")
            values.append(str(int(value)))
        elif isinstance(value, int):
            parameters.append(f"int {name}")
            values.append(str(value))
        else:
            parameters.append(f"typename {name}")
            values.append(element_type(value).metal)
    return parameters, values


def _function_name(
    name: str,
    arguments: str,
    inputs: Sequence[tuple[str, Input]],
    outputs: Sequence[tuple[str, ElementType]],
) -> str:
    parts = [f"custom_kernel_{name}"]
    if arguments:
        parts.append(re.sub(r", |[-<>]", "_", arguments)[:-1])
    for _, value in inputs:
        size = "" if value.data.size >= SMALL else "c"
        parts.append(value.type.metal + ("s" if value.data.ndim == 0 else size))
    parts += [kind.metal for _, kind in outputs]
    return "_".join(parts)


def _of_input(name: str, value: Input, source: str) -> list[Parameter]:
    space = "constant" if value.data.size < SMALL else "device"
    scalar = value.data.ndim == 0
    parameters = [_read_only(name, space, value, value.type.metal, is_argument=True)]
    if scalar:
        return parameters
    described = (
        ("shape", "int", Input(np.array(value.data.shape, np.int32), TYPES["int32"])),
        ("strides", "int64_t", Input(np.array(value.strides, np.int64), TYPES["int64"])),
        ("ndim", "int", Input(np.array(value.data.ndim, np.int32), TYPES["int32"])),
    )
    for suffix, written, of in described:
        if f"{name}_{suffix}" in source:
            parameters.append(_read_only(f"{name}_{suffix}", "constant", of, written))
    return parameters


def _read_only(
    name: str, space: str, value: Input, written: str, is_argument: bool = False
) -> Parameter:
    reference = value.data.ndim == 0
    declaration = f"const {space} {written}{'&' if reference else '*'} {name}"
    return Parameter(
        name, value.type, declaration, f"const {written}", reference, value, is_argument
    )


def _of_output(name: str, kind: ElementType, atomic: bool) -> Parameter:
    pointee = f"atomic<{kind.metal}>" if atomic else kind.metal
    return Parameter(name, kind, f"device {pointee}* {name}", pointee, False, None, True)
