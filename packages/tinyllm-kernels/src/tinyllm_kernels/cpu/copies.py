"""A warning about copies of whole caches, which a forward pass should not make."""

from __future__ import annotations

import logging

from tinyllm_kernels import _cpu as native

_LOGGER = logging.getLogger("tinyllm_kernels")


class CopyWatch:
    """A check for copies of caches since the object was made.

    A stack writes keys and values in place. If another object refers to the arrays of a cache, MLX
    does not donate them, and the extension copies every page first.

    Attributes:
        warned: True after the first warning. Later copies are only counted, by
            `_cpu.copied_bytes`.
    """

    def __init__(self) -> None:
        """Start with the bytes that the process has copied up to now."""
        self._seen = native.copied_bytes()
        self.warned = False

    def check(self) -> None:
        """Log a warning if earlier passes copied a cache, once."""
        copied = native.copied_bytes() - self._seen
        if copied and not self.warned:
            self.warned = True
            _LOGGER.warning(
                "caches: expected writes in place, got copies of %.1f MB, because another object "
                "refers to the arrays: drop that reference, or use `fork` only where it is needed",
                copied / 1e6,
            )
