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
    """The same, checked in the natural order alone.

    For all combinations of formats, sizes and dtypes, where the sweep has each of them once: what
    depends on the order of threads does not depend on these.
    """
    return METAL
