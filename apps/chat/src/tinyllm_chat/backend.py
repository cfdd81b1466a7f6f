"""Which implementation computes, and in which dtype."""

from dataclasses import dataclass

import mlx.core as mx
from tinyllm_ops import MLX, REFERENCE, OpSet

from tinyllm_chat.settings import Settings

_OPS = {"auto": MLX, "mlx": MLX, "reference": REFERENCE}
_DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


@dataclass(frozen=True)
class Backend:
    """The choice made for a session.

    Attributes:
        ops: the implementation of the model's maths.
        dtype: of the weights that are not packed; None keeps the checkpoint's own.
        device: where MLX computes, "cpu" or "gpu".
    """

    ops: OpSet
    dtype: mx.Dtype | None
    device: str

    @classmethod
    def choose(cls, settings: Settings) -> "Backend":
        """Make the automatic choices: MLX's operations, and the dtype that suits the device.

        On a CPU that is float32, where MLX's 16-bit arithmetic is slower and less exact; on a GPU
        it is the checkpoint's own.
        """
        device = "gpu" if mx.default_device().type == mx.DeviceType.gpu else "cpu"
        dtype = _DTYPES.get(settings.dtype)
        if settings.dtype == "auto" and device == "cpu":
            dtype = mx.float32
        return cls(_OPS[settings.ops], dtype, device)
