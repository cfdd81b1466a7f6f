"""Replacement of text in kernels."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import metalhost
import mlx.core as mx
from metalhost.kernel import MetalKernel
from tinyllm_kernels.metal.kernel import mlx_kernel


@contextmanager
def planted(before: str = "", after: str = "") -> Iterator[None]:
    """Run kernels under metalhost with the text `before`, if given, replaced by `after`.

    Raises:
        ValueError: if no kernel that was made has the text `before`, or a kernel has it twice.
    """
    found = not before

    def changed(text: str) -> str:
        nonlocal found
        count = text.count(before) if before else 0
        if count > 1:
            raise ValueError(f"before: expected text that occurs once, got {count} times: {before}")
        found = found or count == 1
        return text.replace(before, after) if count else text

    def metal_kernel(
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: str,
        header: str,
        ensure_row_contiguous: bool,
    ) -> MetalKernel:
        texts = changed(source), changed(header)
        return metalhost.metal_kernel(
            name, input_names, output_names, *texts, ensure_row_contiguous=ensure_row_contiguous
        )

    mlx_kernel.cache_clear()
    with patch.object(mx.fast, "metal_kernel", metal_kernel):
        yield
    mlx_kernel.cache_clear()
    if not found:
        raise ValueError(f"before: expected text of a kernel of the case, got {before}")
