"""A kernel of this package: text from its `.metal` files, handed to MLX at the first call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

import mlx.core as mx

from tinyllm_kernels.arguments import arrays

SIMD = 32  # threads of a simdgroup, on every Apple GPU
MAX_THREADS = 1024  # of a threadgroup


@dataclass(frozen=True)
class Kernel:
    """A Metal kernel, which is compiled once for each choice of its template arguments.

    MLX writes the function around `body`. It hands an array of fewer than eight elements over in
    the address space `constant`, any other one in `device`: the functions that a body calls take
    pointers to inputs of either kind, as template parameters.

    Attributes:
        name: of the function.
        files: whose functions the body calls, relative to this folder; in the order of their text.
        inputs: names of the inputs, as the body knows them.
        outputs: names of the outputs.
        body: a call of a function in the files; declares the threadgroup memory, if there is any.
        row_contiguous: whether MLX copies inputs that are not; otherwise the body uses strides.
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
    ) -> list[mx.array]:
        """Run the kernel, lazily as everything in MLX.

        Args:
            inputs: in the order of their names; a number is a `constant` of the body.
            outputs: shape and dtype of each output, none of them empty.
            groups: threadgroups along each axis.
            group: threads of a threadgroup along each axis.
            template: names in the body that are constants when it is compiled.
        """
        x, y, z = (count * size for count, size in zip(groups, group, strict=True))
        results = made(self)(
            inputs=list(inputs),
            output_shapes=[tuple(shape) for shape, _ in outputs],
            output_dtypes=[dtype for _, dtype in outputs],
            grid=(x, y, z),  # MLX counts threads here, not groups
            threadgroup=group,
            template=list(template),
        )
        assert isinstance(results, list)
        return arrays(results)


@functools.cache
def made(kernel: Kernel) -> Callable[..., object]:
    """MLX's kernel object, which compiles the text when it is first evaluated.

    It is kept as long as the process lives; `made.cache_clear()` is for who changes a text.
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
