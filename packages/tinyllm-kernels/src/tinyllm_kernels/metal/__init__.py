"""The maths of tinyllm-ops as Metal kernels, compiled by MLX on the Mac that runs them.

One folder for each op: `__init__.py` is the contract, the grid and the reasons for it, the `.metal`
file beside it the kernel. `kernel.py` hands the text to MLX, `opset.py` is the OpSet.
"""

from tinyllm_kernels.metal.opset import METAL

__all__ = ["METAL"]
