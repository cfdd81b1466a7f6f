"""Metal kernels for the ops of tinyllm-ops, compiled by MLX at run time.

Each op has a folder. Its `__init__.py` has the function that implements the op, and explains the
size of the grid. The `.metal` files have the kernel. `kernel.py` passes the source text to MLX, and
`opset.py` collects the functions in one OpSet.
"""

from tinyllm_kernels.metal.opset import METAL

__all__ = ["METAL"]
