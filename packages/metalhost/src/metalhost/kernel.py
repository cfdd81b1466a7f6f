"""`metal_kernel`, with the arguments and the behavior of `mx.fast.metal_kernel`, on the CPU."""

import math
import sys
from collections.abc import Sequence

from metalhost.checks.address_spaces import address_space_problems
from metalhost.checks.lint import lint
from metalhost.compilation.program import build_program
from metalhost.execution.buffers import make_buffers
from metalhost.execution.diagnosis import diagnose
from metalhost.execution.fault import KernelFaultError
from metalhost.execution.grid import threadgroup_size
from metalhost.execution.launch import launch
from metalhost.settings import Mode, Settings, call_settings
from metalhost.text.arrays import Array, Input, Scalar, is_mlx, to_array
from metalhost.text.element_type import element_type
from metalhost.text.kernel_text import KernelText
from metalhost.text.problem import KernelTextError, Problem
from metalhost.text.signature import (
    Signature,
    Template,
    generate_signature,
    signature_problems,
)

MAX_BUFFERS = 31  # limit of Metal


class MetalKernel:
    """Callable kernel, made by `metal_kernel`."""

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
        inputs: "Sequence[Array | Scalar]",
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
        """Run the kernel. MLX has the same arguments, except `mode`, `seed` and `offset_views`.

        Args:
            inputs: NumPy arrays and numbers, MLX arrays, and Python numbers.
            output_shapes: shape of each output.
            output_dtypes: dtype of each output: an MLX dtype, a NumPy dtype or a name.
            grid: number of threads along each axis, not of threadgroups.
            threadgroup: threads of a threadgroup along each axis. Threadgroups at the edge of the
                grid may be smaller.
            template: names of template parameters with numbers, booleans or dtypes.
            init_value: initial value of all outputs. Without it they are uninitialized.
            verbose: print the text that MLX would generate.
            stream: ignored, because a call returns when the kernel has finished.
            mode: overrides the current `Settings.mode`.
            seed: overrides the current `Settings.seed`.
            offset_views: overrides the current `Settings.offset_views`.

        Returns:
            the outputs: MLX arrays if any input or dtype is from MLX, otherwise NumPy arrays.

        Raises:
            ValueError: if the arguments are inconsistent.
            KernelTextError: if the text is invalid, or uses a feature that is not supported.
            KernelFaultError: if the kernel has faults. The message names their lines.
            CompilerError: if the machine has no usable C++ compiler.
        """
        del stream
        settings = call_settings(mode, seed, offset_views)
        signature = self._signature(inputs, output_dtypes, template)
        _check_length("output_shapes", output_shapes, self.output_names)
        group_size = threadgroup_size(grid, threadgroup)
        text = KernelText.assemble(self.name, self.header, self.source, signature)
        if verbose:
            sys.stdout.write(f"{text.metal()}\n")
        self._check_text(signature, text, settings)
        counts = [math.prod(shape) for shape in output_shapes]
        buffers = make_buffers(signature, counts, init_value, settings.offset_views)
        program = build_program(text, settings.mode)
        outcome = launch(program, grid, group_size, buffers, settings)
        faults = diagnose(outcome.findings, program, text)
        if faults:
            raise KernelFaultError(self.name, str(settings), faults)
        as_mlx = any(map(is_mlx, [*inputs, *output_dtypes]))
        outputs = zip(outcome.outputs, output_shapes, output_dtypes, strict=True)
        return [to_array(raw, shape, dtype, as_mlx) for raw, shape, dtype in outputs]

    def problems(
        self,
        *,
        inputs: "Sequence[Array | Scalar]",
        output_dtypes: Sequence[object],
        template: Template | None = None,
    ) -> list[Problem]:
        """Check the text with the lint and, if it is installed, clang, without running the kernel.

        Args:
            inputs: as in a call. Their types and sizes determine the generated signature.
            output_dtypes: as in a call.
            template: as in a call.
        """
        signature = self._signature(inputs, output_dtypes, template)
        text = KernelText.assemble(self.name, self.header, self.source, signature)
        found = [*self._lint(signature), *signature_problems(signature)]
        try:
            return found + address_space_problems(text)
        except KernelTextError as error:
            return [*found, *error.problems]

    def _signature(
        self,
        inputs: "Sequence[Array | Scalar]",
        output_dtypes: Sequence[object],
        template: Template | None,
    ) -> Signature:
        """Generate the signature that MLX would generate for these arguments."""
        _check_length("inputs", inputs, self.input_names)
        _check_length("output_dtypes", output_dtypes, self.output_names)
        values = [Input.from_value(value, self._row_contiguous) for value in inputs]
        dtypes = [element_type(dtype) for dtype in output_dtypes]
        signature = generate_signature(
            self.name,
            self.source,
            list(zip(self.input_names, values, strict=True)),
            list(zip(self.output_names, dtypes, strict=True)),
            template or (),
            self._atomic_outputs,
        )
        count = len(signature.parameters)
        if count > MAX_BUFFERS:
            raise ValueError(f"buffers: expected {MAX_BUFFERS} at most, got {count}")
        return signature

    def _lint(self, signature: Signature) -> tuple[Problem, ...]:
        return lint(self.header, self.source, signature.prologue)

    def _check_text(self, signature: Signature, text: KernelText, settings: Settings) -> None:
        """Raise `KernelTextError` if the text has problems that are found without compiling it."""
        found = signature_problems(signature)
        if settings.lint:
            found += self._lint(signature)
        if not found and settings.address_spaces and settings.mode == "check":
            found = address_space_problems(text)
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
    """Make a kernel from the arguments of `mx.fast.metal_kernel`.

    Args:
        name: name of the kernel.
        input_names: names of the inputs in the text.
        output_names: names of the outputs in the text.
        source: body of the kernel. MLX generates the signature around it.
        header: text before the kernel, such as functions and includes.
        ensure_row_contiguous: copy inputs that are not row-contiguous.
        atomic_outputs: make the outputs atomic: `device atomic<float>*`.
        compile_options: ignored, because the host always computes as in Metal's math mode "safe".

    Raises:
        ValueError: if there is no output.
    """
    del compile_options
    return MetalKernel(
        name, input_names, output_names, source, header, ensure_row_contiguous, atomic_outputs
    )


def _check_length(argument: str, got: Sequence[object], names: Sequence[str]) -> None:
    if len(got) != len(names):
        raise ValueError(f"{argument}: expected {len(names)} ({', '.join(names)}), got {len(got)}")
