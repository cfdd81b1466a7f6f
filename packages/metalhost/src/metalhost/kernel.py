"""`metal_kernel`: the arguments and the meaning of `mx.fast.metal_kernel`, on the CPU."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from metalhost import address_spaces
from metalhost.arrays import Array, Input, Scalar, is_mlx, output
from metalhost.buffers import buffers
from metalhost.diagnosis import faults
from metalhost.element_type import element_type
from metalhost.fault import KernelFaultError
from metalhost.grid import group_size
from metalhost.kernel_text import KernelText
from metalhost.launch import launch
from metalhost.lint import lint
from metalhost.problem import KernelTextError, Problem
from metalhost.program import program
from metalhost.settings import Mode, Settings, chosen
from metalhost.signature import Signature, Template, signature, signature_problems

MAX_BUFFERS = 31  # that Metal binds to a kernel


class MetalKernel:
    """A kernel that can be called; `metal_kernel` makes it."""

    def __init__(
        self,
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: str,
        header: str,
        ensure_row_contiguous: bool,
        atomic_outputs: bool,
    ) -> None:
        """See `metal_kernel`."""
        if not output_names:
            raise ValueError(f"kernel {name!r}: expected at least one output, got none")
        self.name = name
        self.input_names = tuple(input_names)
        self.output_names = tuple(output_names)
        self.source = source
        self.header = header
        self._row_contiguous = ensure_row_contiguous
        self._atomic_outputs = atomic_outputs

    def __call__(
        self,
        *,
        inputs: Sequence[Array | Scalar],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[object],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        template: Template | None = None,
        init_value: float | None = None,
        verbose: bool = False,
        stream: object = None,
        mode: Mode | None = None,
        seed: int | None = None,
        offset_views: bool | None = None,
    ) -> list[Array]:
        """Run the kernel; up to `stream`, the arguments are those of MLX.

        Args:
            inputs: arrays of NumPy or MLX, and plain numbers.
            output_shapes: of each output.
            output_dtypes: of each output; MLX's, NumPy's, or names.
            grid: how many threads, not groups.
            threadgroup: how many of them make a group; at the grid's edge there are fewer.
            template: names with numbers, booleans or dtypes.
            init_value: what the outputs hold before; poison unless given.
            verbose: print the text that MLX would generate.
            stream: of no effect: a call returns when the kernel has come to its end.
            mode: see `Settings`; those that are current unless given.
            seed: likewise.
            offset_views: likewise.

        Returns:
            the outputs: MLX arrays if any argument or dtype is one of MLX, NumPy arrays otherwise.

        Raises:
            ValueError: if the arguments do not fit each other.
            KernelTextError: if the text is wrong, or is none that can be run here.
            KernelFaultError: if the kernel did what it must not; the message names the lines.
            CompilerError: if this machine has no C++ compiler.
        """
        del stream
        settings = chosen(mode, seed, offset_views)
        around = self._signature(inputs, output_dtypes, template)
        _same_length("output_shapes", output_shapes, self.output_names)
        size = group_size(grid, threadgroup)
        text = KernelText.of(self.name, self.header, self.source, around)
        if verbose:
            sys.stdout.write(f"{text.metal()}\n")
        self._refuse(around, text, settings)
        counts = [math.prod(shape) for shape in output_shapes]
        memory = buffers(around, counts, init_value, settings.offset_views)
        built = program(text, settings.mode)
        outcome = launch(built, grid, size, memory, settings)
        found = faults(outcome.findings, built, text)
        if found:
            raise KernelFaultError(self.name, str(settings), found)
        as_mlx = any(map(is_mlx, [*inputs, *output_dtypes]))
        written = zip(outcome.outputs, output_shapes, output_dtypes, strict=True)
        return [output(raw, shape, dtype, as_mlx) for raw, shape, dtype in written]

    def problems(
        self,
        *,
        inputs: Sequence[Array | Scalar],
        output_dtypes: Sequence[object],
        template: Template | None = None,
    ) -> list[Problem]:
        """What the lint finds in the text and, where clang is installed, clang; nothing is run.

        Args:
            inputs: as for a call: their types and sizes are part of the generated text.
            output_dtypes: as for a call.
            template: as for a call.
        """
        around = self._signature(inputs, output_dtypes, template)
        text = KernelText.of(self.name, self.header, self.source, around)
        found = [*lint(self.header, self.source), *signature_problems(around)]
        return found + address_spaces.problems(text)

    def _signature(
        self,
        inputs: Sequence[Array | Scalar],
        output_dtypes: Sequence[object],
        template: Template | None,
    ) -> Signature:
        """What MLX would write around the body for these arguments."""
        _same_length("inputs", inputs, self.input_names)
        _same_length("output_dtypes", output_dtypes, self.output_names)
        arguments = [Input.of(value, self._row_contiguous) for value in inputs]
        kinds = [element_type(dtype) for dtype in output_dtypes]
        around = signature(
            self.name,
            self.source,
            list(zip(self.input_names, arguments, strict=True)),
            list(zip(self.output_names, kinds, strict=True)),
            template or (),
            self._atomic_outputs,
        )
        count = len(around.parameters)
        if count > MAX_BUFFERS:
            raise ValueError(f"buffers: expected {MAX_BUFFERS} at most, got {count}")
        return around

    def _refuse(self, around: Signature, text: KernelText, settings: Settings) -> None:
        """Raise an error for what is wrong with the text before it is compiled."""
        found = signature_problems(around)
        if settings.lint:
            found += lint(self.header, self.source)
        if not found and settings.address_spaces and settings.mode == "check":
            found = address_spaces.problems(text)
        if found:
            raise KernelTextError(self.name, found)


def metal_kernel(
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    header: str = "",
    ensure_row_contiguous: bool = True,
    atomic_outputs: bool = False,
    compile_options: object | None = None,
) -> MetalKernel:
    """A kernel, from the arguments of `mx.fast.metal_kernel`.

    Args:
        name: of the kernel.
        input_names: the names of the inputs in the text.
        output_names: the names of the outputs.
        source: the body of the kernel; MLX writes the signature around it.
        header: what stands before the kernel: functions, includes.
        ensure_row_contiguous: copy inputs whose elements are not in order, one after the other.
        atomic_outputs: make the outputs atomic: `device atomic<float>*`.
        compile_options: of no effect: the host's arithmetic is that of the math mode "safe".

    Raises:
        ValueError: if there is no output.
    """
    del compile_options
    return MetalKernel(
        name, input_names, output_names, source, header, ensure_row_contiguous, atomic_outputs
    )


def _same_length(what: str, got: Sequence[object], names: Sequence[str]) -> None:
    if len(got) != len(names):
        raise ValueError(f"{what}: expected {len(names)} ({', '.join(names)}), got {len(got)}")
