"""The implementation and the dtype that a program computes with."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
from tinyllm_ops import OpSet

from tinyllm_kernels.backend import BACKENDS, on_gpu, opset
from tinyllm_kernels.errors import BackendError, BrokenBackendError

OPS = ("auto", *sorted(entry.name for entry in BACKENDS))
DTYPES = {
    "auto": None,
    "float32": mx.float32,
    "float16": mx.float16,
    "bfloat16": mx.bfloat16,
}


@dataclass(frozen=True)
class Arithmetic:
    """The choice of a backend and a dtype; programs print it at start-up.

    Attributes:
        ops: the implementation of the model's maths.
        dtype: the dtype of unpacked weights; None keeps the checkpoint's own.
        device: the device on which MLX computes, "cpu" or "gpu".
        note: the reason why an automatic choice is not the fastest one; empty when it is.
    """

    ops: OpSet
    dtype: mx.Dtype | None
    device: str
    note: str = ""

    @classmethod
    def choose(cls, ops: str = "auto", dtype: str = "auto") -> Arithmetic:
        """Choose the kernels for the device, and the dtype that suits it.

        On a Mac's GPU these are the Metal kernels, on any other GPU MLX's operations. On a CPU they
        are the native kernels, or MLX's if there are none, and then float32, since MLX's 16-bit
        arithmetic is slower and less exact there. Otherwise the dtype is the checkpoint's own.

        Args:
            ops: "cpu", "metal", "mlx", "reference" or "auto".
            dtype: "float32", "float16", "bfloat16" or "auto".

        Raises:
            BackendError: if the requested implementation is not on this machine, or the one for
                the device is installed and broken.
            ValueError: if there is no such implementation or dtype.
        """
        if ops not in OPS:
            raise ValueError(f"ops: expected one of {', '.join(OPS)}, got {ops!r}")
        if dtype not in DTYPES:
            raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
        device = "gpu" if on_gpu() else "cpu"
        chosen, note = _automatic() if ops == "auto" else (opset(ops), "")
        kept = DTYPES[dtype]
        if dtype == "auto" and device == "cpu" and chosen.name == "mlx":
            kept = mx.float32
        return cls(chosen, kept, device, note)


def _automatic() -> tuple[OpSet, str]:
    """Return the first present backend that suits the device, and a note about absent ones."""
    absent: list[str] = []
    for entry in BACKENDS:
        if not entry.suits():
            continue
        try:
            chosen = opset(entry.name)
        except BrokenBackendError:
            raise
        except BackendError as error:
            absent.append(f"no {entry.name.upper()} kernels: {error}")
            continue
        note = f"{'; '.join(absent)}; {entry.name.upper()} computes" if absent else ""
        return chosen, note
    raise BackendError("; ".join(absent))
