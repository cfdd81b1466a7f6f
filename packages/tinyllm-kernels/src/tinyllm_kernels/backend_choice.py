"""The choice of a backend and a dtype for a program."""

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
class BackendChoice:
    """A backend and a dtype, as chosen for a program. Programs print the choice at start-up.

    Attributes:
        ops: the OpSet of the backend.
        dtype: the dtype of weights that are not quantized; None keeps the dtype of the checkpoint.
        device: the device on which MLX computes, "cpu" or "gpu".
        note: the reason why an automatic choice is not the fastest backend; otherwise empty.
    """

    ops: OpSet
    dtype: mx.Dtype | None
    device: str
    note: str = ""

    @classmethod
    def choose(cls, ops: str = "auto", dtype: str = "auto") -> "BackendChoice":
        """Choose a backend for the device, and a dtype for the backend.

        On the GPU of a Mac, "auto" chooses the Metal kernels. On any other GPU it chooses MLX's
        operations. On a CPU it chooses the native kernels, or MLX's operations if there are none.
        MLX's operations on a CPU compute in float32, because 16-bit arithmetic is slower and less
        exact there. In all other cases, "auto" keeps the dtype of the checkpoint.

        Args:
            ops: "cpu", "cpu-int8", "metal", "mlx", "reference" or "auto".
            dtype: "float32", "float16", "bfloat16" or "auto".

        Raises:
            BackendError: if the requested backend is not on this machine, or the backend for the
                device is installed and broken.
            ValueError: if `ops` or `dtype` is not in the list above.
        """
        if ops not in OPS:
            raise ValueError(f"ops: expected one of {', '.join(OPS)}, got {ops!r}")
        if dtype not in DTYPES:
            raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
        device = "gpu" if on_gpu() else "cpu"
        chosen_ops, note = _automatic() if ops == "auto" else (opset(ops), "")
        chosen_dtype = DTYPES[dtype]
        if dtype == "auto" and device == "cpu" and chosen_ops.name == "mlx":
            chosen_dtype = mx.float32
        return cls(chosen_ops, chosen_dtype, device, note)


def _automatic() -> tuple[OpSet, str]:
    """Return the first usable backend for the device, and a note about faster, absent backends."""
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
