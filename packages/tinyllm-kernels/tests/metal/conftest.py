"""Fixtures for tests of Metal kernels, which run under metalhost, or once on the GPU of a Mac."""

import pytest
from metalhost import Settings
from tinyllm_kernels.metal import METAL
from tinyllm_ops import OpSet


@pytest.fixture
def metal(metal_sweep: Settings | None) -> OpSet:
    """The OpSet of Metal kernels, under all settings of `metalhost.SWEEP`.

    Three settings have mode "check", and four have mode "fast" with fewer checks. Each setting of a
    mode has another order of threads.
    """
    return METAL


@pytest.fixture
def metal_checked(metal_host: None) -> OpSet:
    """The OpSet of Metal kernels, checked by metalhost in the natural order of threads alone.

    For tests of all combinations of formats, sizes and dtypes. The sweep runs each format, size and
    dtype once, which is enough because faults of thread order do not depend on the combination.
    """
    return METAL
