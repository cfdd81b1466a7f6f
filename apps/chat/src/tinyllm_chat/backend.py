"""Which implementation computes, and in which dtype."""

from dataclasses import dataclass

import mlx.core as mx
from tinyllm_kernels import BackendError, opset
from tinyllm_ops import OpSet

from tinyllm_chat.errors import ChatError
from tinyllm_chat.settings import Settings

_DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


@dataclass(frozen=True)
class Backend:
    """The choice made for a session.

    Attributes:
        ops: the implementation of the model's maths.
        dtype: of the weights that are not packed; None keeps the checkpoint's own.
        device: where MLX computes, "cpu" or "gpu".
        note: what the user should know of an automatic choice; empty when it is the best one.
    """

    ops: OpSet
    dtype: mx.Dtype | None
    device: str
    note: str = ""

    @classmethod
    def choose(cls, settings: Settings) -> "Backend":
        """Make the automatic choices: what is fastest on the device, and the dtype that suits it.

        On a GPU these are MLX's operations. On a CPU they are the native kernels, or MLX's where
        there are none, and then float32, since MLX's 16-bit arithmetic is slower and less exact
        there. Otherwise the dtype is the checkpoint's own.

        Raises:
            ChatError: if the implementation that was asked for is not on this machine.
        """
        device = "gpu" if mx.default_device().type == mx.DeviceType.gpu else "cpu"
        wanted, note = settings.ops, ""
        if wanted == "auto":
            wanted = "mlx" if device == "gpu" else "cpu"
        try:
            ops = opset(wanted)
        except BackendError as error:
            if settings.ops != "auto":
                raise ChatError(f"--ops {wanted}: {error}") from error
            ops, note = opset("mlx"), f"no CPU kernels, MLX computes: {error}"
        dtype = _DTYPES.get(settings.dtype)
        if settings.dtype == "auto" and device == "cpu" and ops.name == "mlx":
            dtype = mx.float32
        return cls(ops, dtype, device, note)
