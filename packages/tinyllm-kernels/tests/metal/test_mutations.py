"""The tests of the kernels find planted faults. `metal_kernels mutations` plants all faults."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "metal_kernels"


# Only under metalhost: on a GPU a race may have no effect.
@pytest.mark.skipif(sys.platform == "darwin", reason="faults are planted under metalhost")
def test_the_first_fault_of_each_kernel_is_found() -> None:
    command = [sys.executable, str(TOOL), "mutations", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| `matrix_vector` | 1 | 1 | 0 | 0 |" in done.stdout
