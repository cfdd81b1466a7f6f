"""Kernels with another text than they have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import metalhost
import mlx.core as mx
from metalhost.kernel import MetalKernel
from tinyllm_kernels.metal.kernel import made


@contextmanager
def planted(before: str = "", after: str = "") -> Iterator[None]:
    """Run the kernels under metalhost; their text has `after` where it had `before`, if given.

    Raises:
        ValueError: if `before` is not in the text of any kernel that was made, or not once.
    """
    met = not before

    def changed(text: str) -> str:
        nonlocal met
        count = text.count(before) if before else 0
        if count > 1:
            raise ValueError(f"expected one place with this text, got {count}: {before}")
        met = met or count == 1
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

    made.cache_clear()
    with patch.object(mx.fast, "metal_kernel", metal_kernel):
        yield
    made.cache_clear()
    if not met:
        raise ValueError(f"no kernel of the case has this text: {before}")
