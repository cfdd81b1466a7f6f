"""Metal kernels, whose source text is passed to MLX at the first call."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

import mlx.core as mx

SIMD = 32
"""Number of threads in a simdgroup, on every Apple GPU."""

MAX_THREADS = 1024
"""Maximum number of threads in a threadgroup."""


@dataclass(frozen=True)
class Kernel:
    """Metal kernel. MLX compiles it once for each set of template arguments.

    MLX generates the function around `body`. An array of fewer than eight elements is in the
    address space `constant`, a larger array in `device`. The types of pointers to inputs are
    therefore template parameters of the functions that the body calls.

    Attributes:
        name: name of the kernel function.
        files: Metal files with the functions that the body calls, relative to this folder, in the
            order in which they are included.
        inputs: names of the inputs, as the body uses them.
        outputs: names of the outputs.
        body: function body, with the declarations of threadgroup memory.
        row_contiguous: True to let MLX copy inputs that are not row-contiguous. Otherwise the
            body must use strides.
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
        threadgroups_per_grid: tuple[int, int, int],
        threads_per_threadgroup: tuple[int, int, int],
        template: Sequence[tuple[str, mx.Dtype | int | bool]] = (),
        init_value: float | None = None,
    ) -> list[mx.array]:
        """Add the kernel to MLX's graph.

        Args:
            inputs: arrays and numbers in the order of their names. A number is in the address space
                `constant`.
            outputs: shape and dtype of each output. No output may be empty.
            threadgroups_per_grid: number along each axis, at least one.
            threads_per_threadgroup: number along each axis.
            template: name and value of each template parameter, a constant at compile time.
            init_value: initial value of the outputs, for a kernel that does not write all of them.
        """
        counts = zip(threadgroups_per_grid, threads_per_threadgroup, strict=True)
        x, y, z = (threadgroups * threads for threadgroups, threads in counts)
        results = mlx_kernel(self)(
            inputs=list(inputs),
            output_shapes=[tuple(shape) for shape, _ in outputs],
            output_dtypes=[dtype for _, dtype in outputs],
            grid=(x, y, z),  # MLX counts threads here, not threadgroups
            threadgroup=threads_per_threadgroup,
            template=list(template),
            init_value=init_value,
        )
        assert isinstance(results, list)
        return results


@functools.cache
def mlx_kernel(kernel: Kernel) -> Callable[..., object]:
    """Make MLX's kernel object, which compiles the text at its first evaluation.

    The object is cached for the life of the process. Call `mlx_kernel.cache_clear()` after a text
    has changed.
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
