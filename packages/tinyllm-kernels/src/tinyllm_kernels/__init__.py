"""The ops of tinyllm-ops and the layer stack of tinyllm-layers as native kernels.

    ops = opset("cpu")
    y = ops.linear(x, w)

`available()` lists all backends, each with its device or the reason why it cannot be used.
"""

from tinyllm_kernels.backend import BackendStatus, available, opset
from tinyllm_kernels.backend_choice import BackendChoice
from tinyllm_kernels.errors import BackendError

__all__ = ["BackendChoice", "BackendError", "BackendStatus", "available", "opset"]
