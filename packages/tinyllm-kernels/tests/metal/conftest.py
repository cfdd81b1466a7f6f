"""Metal kernels under metalhost; on a Mac the same tests run on its GPU, once."""

import pytest
from metalhost import Settings
from tinyllm_kernels.metal import METAL
from tinyllm_ops import OpSet


@pytest.fixture
def metal(metal_sweep: Settings | None) -> OpSet:
    """The OpSet of Metal kernels, checked in three orders of threads and fast in four."""
    return METAL


@pytest.fixture
def metal_checked(metal_host: None) -> OpSet:
    """The OpSet of Metal kernels, checked in the natural order of threads alone.

    For tests of all combinations of formats, sizes and dtypes. The sweep runs each format, size and
    dtype once, which is enough because faults of thread order do not depend on the combination.
    """
    return METAL
