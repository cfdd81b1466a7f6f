"""Signature that MLX generates around the body of a kernel.

MLX derives the parameters from the arguments of each call. A scalar becomes a reference. An array
of fewer than eight elements is in the `constant` address space. The shape of `x` becomes a
parameter if the body contains `x_shape`. A test compares the text with the text of MLX.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from metalhost.text.arrays import Input
from metalhost.text.attributes import ATTRIBUTES, Attribute
from metalhost.text.element_type import TYPES, ElementType, element_type
from metalhost.text.problem import Problem

CONSTANT_LIMIT = 8  # elements; MLX passes arrays of fewer elements as `constant`

Template = Sequence[tuple[str, object]]


@dataclass(frozen=True)
class Parameter:
    """Buffer parameter of a kernel.

    Attributes:
        name: name in the text.
        type: element type.
        declaration: declaration in the signature, without the buffer number.
        pointee: C++ type of an element on the host.
        is_reference: True for a reference, False for a pointer.
        data: contents of an input, or of its shape, strides or ndim. None for an output.
        is_argument: True for an input or output, False for a shape, strides or ndim.
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
    """Generated text around the body of a kernel.

    Attributes:
        function: name of the function.
        instance: name of the function with its template arguments.
        parameters: buffer parameters, in order.
        attributes: attribute parameters, in order.
        prologue: text between the header and the body.
        epilogue: text after the body.
    """

    function: str
    instance: str
    parameters: tuple[Parameter, ...]
    attributes: tuple[Attribute, ...]
    prologue: str
    epilogue: str


def generate_signature(
    name: str,
    source: str,
    inputs: Sequence[tuple[str, Input]],
    outputs: Sequence[tuple[str, ElementType]],
    template: Template = (),
    atomic_outputs: bool = False,
) -> Signature:
    """Generate the signature that MLX 0.32 generates for these arguments.

    Args:
        name: name of the kernel.
        source: body of the kernel.
        inputs: name and value of each input.
        outputs: name and element type of each output.
        template: name and value of each template parameter.
        atomic_outputs: True if the outputs are atomic.
    """
    template_parameters, template_arguments = _template(template)
    arguments = f"<{', '.join(template_arguments)}>" if template_arguments else ""
    function = _function_name(name, arguments, inputs, outputs)
    parameters = [part for named in inputs for part in _input_parameters(*named, source)]
    parameters += [_output_parameter(*named, atomic_outputs) for named in outputs]
    attributes = tuple(a for a in ATTRIBUTES if a.name in source)
    lines = [f"  {p.declaration} [[buffer({i})]]" for i, p in enumerate(parameters)]
    lines += [f"  {a.type} {a.name} [[{a.name}]]" for a in attributes]
    head = f"template <{', '.join(template_parameters)}>\n" if template_arguments else ""
    instance = function + arguments
    epilogue = "\n}\n"
    if template_arguments:
        epilogue += (
            f'\ntemplate [[host_name("{function}")]] [[kernel]] decltype({instance}) {instance};\n'
        )
    return Signature(
        function=function,
        instance=instance,
        parameters=tuple(parameters),
        attributes=attributes,
        prologue=f"{head}[[kernel]] void {function}(\n" + ",\n".join(lines) + ") {\n",
        epilogue=epilogue,
    )


def signature_problems(signature: Signature) -> list[Problem]:
    """Return a problem if MLX 0.32 generates an invalid signature for these arguments.

    Without an attribute, MLX closes the parameter list too early if there are several outputs and
    a shape, strides or ndim.
    """
    outputs = sum(parameter.data is None for parameter in signature.parameters)
    has_shape = any(p.data is not None and not p.is_argument for p in signature.parameters)
    if signature.attributes or outputs < 2 or not has_shape:
        return []
    message = "MLX needs an attribute, such as thread_position_in_grid, in a kernel with several"
    return [Problem("source", 1, f"{message} outputs and the shape, strides or ndim of an input")]


def _template(template: Template) -> tuple[list[str], list[str]]:
    parameters, arguments = [], []
    for name, value in template:
        if isinstance(value, bool):
            parameters.append(f"bool {name}")
            arguments.append(str(int(value)))
        elif isinstance(value, int):
            parameters.append(f"int {name}")
            arguments.append(str(value))
        else:
            parameters.append(f"typename {name}")
            arguments.append(element_type(value).metal)
    return parameters, arguments


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
        size = "" if value.data.size >= CONSTANT_LIMIT else "c"
        parts.append(value.type.metal + ("s" if value.data.ndim == 0 else size))
    parts += [dtype.metal for _, dtype in outputs]
    return "_".join(parts)


def _input_parameters(name: str, value: Input, source: str) -> list[Parameter]:
    space = "constant" if value.data.size < CONSTANT_LIMIT else "device"
    parameters = [_read_only(name, space, value, value.type.metal, is_argument=True)]
    if value.data.ndim == 0:
        return parameters
    descriptions = (
        ("shape", "int", Input(np.array(value.data.shape, np.int32), TYPES["int32"])),
        ("strides", "int64_t", Input(np.array(value.strides, np.int64), TYPES["int64"])),
        ("ndim", "int", Input(np.array(value.data.ndim, np.int32), TYPES["int32"])),
    )
    for suffix, metal_type, contents in descriptions:
        if f"{name}_{suffix}" in source:
            parameters.append(_read_only(f"{name}_{suffix}", "constant", contents, metal_type))
    return parameters


def _read_only(
    name: str, space: str, value: Input, metal_type: str, is_argument: bool = False
) -> Parameter:
    is_reference = value.data.ndim == 0
    declaration = f"const {space} {metal_type}{'&' if is_reference else '*'} {name}"
    return Parameter(
        name, value.type, declaration, f"const {metal_type}", is_reference, value, is_argument
    )


def _output_parameter(name: str, dtype: ElementType, atomic: bool) -> Parameter:
    pointee = f"atomic<{dtype.metal}>" if atomic else dtype.metal
    return Parameter(name, dtype, f"device {pointee}* {name}", pointee, False, None, True)
