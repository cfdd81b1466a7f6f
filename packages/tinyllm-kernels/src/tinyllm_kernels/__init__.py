"""The maths of tinyllm-ops, implemented natively behind the same contract.

ops = opset("cpu")
y = ops.linear(x, w)

`available()` says which backends there are on this machine, and why the others are not.
"""

from tinyllm_kernels.arithmetic import Arithmetic
from tinyllm_kernels.backend import Backend, BackendError, available, opset

__all__ = ["Arithmetic", "Backend", "BackendError", "available", "opset"]
