"""The ops of tinyllm-ops as Metal kernels, compiled by MLX on the Mac that runs them.

Each op has a folder. Its `__init__.py` holds the function of the contract and the size of the grid
with the reasons for it. The `.metal` files beside it hold the kernel. `kernel.py` passes the text
to MLX, and `opset.py` collects the functions in one OpSet.
"""

from tinyllm_kernels.metal.opset import METAL

__all__ = ["METAL"]
