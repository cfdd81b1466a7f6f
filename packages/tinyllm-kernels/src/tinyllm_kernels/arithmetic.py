"""Which implementation computes, and in which dtype."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
from tinyllm_ops import OpSet

from tinyllm_kernels.backend import BackendError, opset

OPS = ("auto", "cpu", "metal", "mlx", "reference")
DTYPES = {
    "auto": None,
    "float32": mx.float32,
    "float16": mx.float16,
    "bfloat16": mx.bfloat16,
}


@dataclass(frozen=True)
class Arithmetic:
    """What a program computes with; say so where a user sees it.

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
    def choose(cls, ops: str = "auto", dtype: str = "auto") -> Arithmetic:
        """Make the automatic choices: the kernels for the device, and the dtype that suits it.

        On a Mac's GPU these are the Metal kernels, on any other GPU MLX's operations. On a CPU they
        are the native kernels, or MLX's where there are none, and then float32, since MLX's 16-bit
        arithmetic is slower and less exact there. Otherwise the dtype is the checkpoint's own.

        Args:
            ops: "cpu", "metal", "mlx", "reference" or "auto".
            dtype: "float32", "float16", "bfloat16" or "auto".

        Raises:
            BackendError: if the implementation that was asked for is not on this machine.
            ValueError: if there is none of that name, or no such dtype.
        """
        if ops not in OPS:
            raise ValueError(f"ops: expected one of {', '.join(OPS)}, got {ops!r}")
        if dtype not in DTYPES:
            raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
        device = "gpu" if mx.default_device().type == mx.DeviceType.gpu else "cpu"
        wanted, note = ops, ""
        if wanted == "auto":
            on_gpu = "metal" if mx.metal.is_available() else "mlx"
            wanted = on_gpu if device == "gpu" else "cpu"
        try:
            chosen = opset(wanted)
        except BackendError as error:
            if ops != "auto":
                raise
            chosen, note = opset("mlx"), f"no CPU kernels, MLX computes: {error}"
        kept = DTYPES[dtype]
        if dtype == "auto" and device == "cpu" and chosen.name == "mlx":
            kept = mx.float32
        return cls(chosen, kept, device, note)
