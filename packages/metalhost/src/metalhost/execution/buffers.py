"""Buffers of a launch, one for each buffer parameter of the kernel."""

from collections.abc import Sequence

from metalhost.execution.launch import Buffer
from metalhost.text.arrays import filled_bytes
from metalhost.text.signature import Parameter, Signature


def make_buffers(
    signature: Signature, counts: Sequence[int], init_value: float | None, offset_views: bool
) -> list[Buffer]:
    """Make the buffers in the order of the parameters.

    Args:
        signature: signature of the kernel.
        counts: number of elements of each output.
        init_value: initial value of all outputs, or None for uninitialized outputs.
        offset_views: True to start input arrays one element after an aligned address. Outputs
            stay aligned, because MLX allocates them.
    """
    output_counts = iter(counts)
    return [
        _input(parameter, offset_views)
        if parameter.data is not None
        else _output(parameter, next(output_counts), init_value)
        for parameter in signature.parameters
    ]


def _input(parameter: Parameter, offset_views: bool) -> Buffer:
    assert parameter.data is not None
    data = parameter.data.bytes()
    may_be_a_slice = parameter.is_argument and not parameter.is_reference
    misalignment = parameter.type.storage.itemsize * (offset_views and may_be_a_slice)
    return Buffer(parameter.name, len(data), data, misalignment=misalignment)


def _output(parameter: Parameter, count: int, init_value: float | None) -> Buffer:
    data = None if init_value is None else filled_bytes(init_value, count, parameter.type)
    return Buffer(parameter.name, count * parameter.type.storage.itemsize, data, is_output=True)
