"""The memory of a launch: one buffer for each parameter of the kernel that is one."""

from __future__ import annotations

from collections.abc import Sequence

from metalhost.arrays import filled
from metalhost.launch import Buffer
from metalhost.signature import Parameter, Signature


def buffers(
    around: Signature, counts: Sequence[int], init_value: float | None, offset_views: bool
) -> list[Buffer]:
    """The buffers, in the order of the parameters.

    Args:
        around: the signature.
        counts: how many elements each output has.
        init_value: what all of them are at the beginning, if anything.
        offset_views: let arrays begin one element after an aligned address. Outputs do not: MLX
            makes a new array for each.
    """
    left = iter(counts)
    return [
        _input(parameter, offset_views)
        if parameter.data is not None
        else _output(parameter, next(left), init_value)
        for parameter in around.parameters
    ]


def _input(parameter: Parameter, offset_views: bool) -> Buffer:
    assert parameter.data is not None
    data = parameter.data.bytes()
    may_be_a_slice = parameter.is_argument and not parameter.is_reference
    misalignment = parameter.type.storage.itemsize * (offset_views and may_be_a_slice)
    return Buffer(parameter.name, len(data), data, misalignment=misalignment)


def _output(parameter: Parameter, count: int, init_value: float | None) -> Buffer:
    data = None if init_value is None else filled(init_value, count, parameter.type)
    return Buffer(parameter.name, count * parameter.type.storage.itemsize, data, is_output=True)
