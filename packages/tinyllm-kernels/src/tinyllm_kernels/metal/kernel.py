"""Metal kernels: text from the `.metal` files of this package, passed to MLX at the first call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

import mlx.core as mx

SIMD = 32
"""Threads of a simdgroup, on every Apple GPU."""

MAX_THREADS = 1024
"""Threads of a threadgroup, at most."""


@dataclass(frozen=True)
class Kernel:
    """A Metal kernel. MLX compiles it once for each choice of its template arguments.

    MLX writes the function around `body`. It passes an array of fewer than eight elements in the
    address space `constant`, and any larger array in `device`. Functions that a body calls
    therefore take pointers to inputs as template parameters.

    Attributes:
        name: name of the kernel function.
        files: Metal files with the functions that the body calls, relative to this folder, in the
            order in which they are included.
        inputs: names of the inputs, as the body uses them.
        outputs: names of the outputs.
        body: text of the function body. It declares the threadgroup memory, if there is any.
        row_contiguous: True if MLX copies inputs that are not row-contiguous. Otherwise the body
            uses strides.
    """

    name: str
    files: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    body: str
    row_contiguous: bool = True

    def __call__(
        self,
        inputs: Sequence[mx.array | int | float],
        outputs: Sequence[tuple[Sequence[int], mx.Dtype]],
        *,
        groups: tuple[int, int, int],
        group: tuple[int, int, int],
        template: Sequence[tuple[str, mx.Dtype | int | bool]] = (),
        init_value: float | None = None,
    ) -> list[mx.array]:
        """Add the kernel to MLX's graph.

        Args:
            inputs: arrays and numbers in the order of their names. A number becomes a `constant`.
            outputs: shape and dtype of each output. No output may be empty.
            groups: threadgroups along each axis, at least one.
            group: threads of a threadgroup along each axis.
            template: names in the body that are constants at compile time, with their values.
            init_value: value of the outputs before the kernel runs, for a kernel that does not
                write all of them.
        """
        x, y, z = (count * size for count, size in zip(groups, group, strict=True))
        results = mlx_kernel(self)(
            inputs=list(inputs),
            output_shapes=[tuple(shape) for shape, _ in outputs],
            output_dtypes=[dtype for _, dtype in outputs],
            grid=(x, y, z),  # MLX counts threads here, not groups
            threadgroup=group,
            template=list(template),
            init_value=init_value,
        )
        assert isinstance(results, list)
        return results


@functools.cache
def mlx_kernel(kernel: Kernel) -> Callable[..., object]:
    """Make MLX's kernel object, which compiles the text when it is first evaluated.

    The object is kept for the life of the process. Call `mlx_kernel.cache_clear()` after a change
    of a text.
    """
    folder = resources.files("tinyllm_kernels.metal")
    texts = (folder.joinpath(name).read_text(encoding="utf-8") for name in kernel.files)
    kernel_object = mx.fast.metal_kernel(
        name=kernel.name,
        input_names=list(kernel.inputs),
        output_names=list(kernel.outputs),
        source=kernel.body,
        header="\n".join(texts),
        ensure_row_contiguous=kernel.row_contiguous,
    )
    assert callable(kernel_object)
    return kernel_object
