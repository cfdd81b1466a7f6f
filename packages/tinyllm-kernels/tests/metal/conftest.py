"""Metal kernels: under metalhost, checked in three orders of threads and fast in four; on a Mac's
GPU once.
"""

import pytest
from metalhost import Settings
from tinyllm_kernels.metal import METAL
from tinyllm_ops import OpSet


@pytest.fixture
def metal(metal_sweep: Settings | None) -> OpSet:
    """The OpSet of Metal kernels, by one of the settings of the sweep."""
    return METAL
