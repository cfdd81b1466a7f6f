"""Test tools for a new `OpSet`: an oracle in float64, and one table of tolerances.

The package needs the extra `testing` (numpy). Nothing else in `tinyllm_ops` imports it.

    x = normal((2, 3, 64), mx.bfloat16, seed=0)
    assert_close(silu(x), oracle.silu(exact(x)))
"""

from tinyllm_ops.mlx import MLX
from tinyllm_ops.reference import REFERENCE
from tinyllm_ops.testing import oracle
from tinyllm_ops.testing.arrays import exact, normal, rounded
from tinyllm_ops.testing.devices import DEVICES
from tinyllm_ops.testing.page_table import page_table
from tinyllm_ops.testing.signatures import without_checks
from tinyllm_ops.testing.state_table import scan_sequences
from tinyllm_ops.testing.tolerance import TOLERANCE, assert_close

OPSETS = (REFERENCE, MLX)

__all__ = [
    "DEVICES",
    "OPSETS",
    "TOLERANCE",
    "assert_close",
    "exact",
    "normal",
    "oracle",
    "page_table",
    "rounded",
    "scan_sequences",
    "without_checks",
]
