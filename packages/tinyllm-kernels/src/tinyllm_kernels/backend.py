"""The table of backends, and access to the backends of this machine."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
from tinyllm_ops import MLX, REFERENCE, OpSet

from tinyllm_kernels.cpu.extension import (
    describe_extension,
    describe_int8_products,
    load_extension,
)
from tinyllm_kernels.errors import BackendError


@dataclass(frozen=True)
class BackendStatus:
    """The availability of one backend.

    Attributes:
        name: the name that `opset` accepts.
        present: True if the backend can be used on this machine.
        detail: the device that the backend runs on, or the reason for its absence.
        rounds_more: True if results are less exact than the dtype, for speed. Programs use such a
            backend only if its name is given.
    """

    name: str
    present: bool
    detail: str
    rounds_more: bool = False

    def __str__(self) -> str:
        """Return one line to print."""
        return f"{self.name}: {self.detail}" if self.present else f"no {self.name}: {self.detail}"


@dataclass(frozen=True)
class BackendEntry:
    """One row of the table of backends.

    Attributes:
        name: the name that `opset` accepts.
        suits: returns True if the backend is made for the device on which MLX computes.
        describe: returns the device in words. Raises BackendError with the reason if the backend
            cannot be used.
        load: returns the OpSet. Raises BackendError as `describe` does.
        rounds_more: as in `BackendStatus`.
    """

    name: str
    suits: Callable[[], bool]
    describe: Callable[[], str]
    load: Callable[[], OpSet]
    rounds_more: bool = False

    @property
    def status(self) -> BackendStatus:
        """The availability of the backend on this machine, now."""
        try:
            return BackendStatus(self.name, True, self.describe(), self.rounds_more)
        except BackendError as error:
            return BackendStatus(self.name, False, str(error), self.rounds_more)


def available() -> tuple[BackendStatus, ...]:
    """Return the availability of each backend, in the order of `BACKENDS`."""
    return tuple(entry.status for entry in BACKENDS)


def opset(name: str) -> OpSet:
    """Return the OpSet of a backend.

    Raises:
        BackendError: if the backend is not on this machine.
        ValueError: if there is no backend of this name.
    """
    for entry in BACKENDS:
        if entry.name == name:
            return entry.load()
    names = ", ".join(entry.name for entry in BACKENDS)
    raise ValueError(f"name: expected one of {names}, got {name!r}")


def on_gpu() -> bool:
    """Return True if MLX's default device is a GPU."""
    return bool(mx.default_device().type == mx.gpu)


def _load_cpu() -> OpSet:
    load_extension()
    # Import here: the module imports the extension, which may be absent.
    from tinyllm_kernels.cpu.layers.stack import CPU

    return CPU


def _load_cpu_int8() -> OpSet:
    describe_int8_products()
    from tinyllm_kernels.cpu.layers.stack import CPU_INT8

    return CPU_INT8


def _describe_metal() -> str:
    if not mx.metal.is_available():
        raise BackendError(
            "MLX finds no Metal device; the kernels need a Mac with Apple silicon "
            "(their tests run anywhere, under metalhost)"
        )
    if not on_gpu():
        raise BackendError(
            "MLX's default device is the CPU: call mx.set_default_device(mx.gpu) first"
        )
    return f"Metal, {mx.device_info(mx.gpu)['device_name']}"


def _load_metal() -> OpSet:
    _describe_metal()
    # Import here: the module reads the source files of the kernels.
    from tinyllm_kernels.metal import METAL

    return METAL


BACKENDS: tuple[BackendEntry, ...] = (
    BackendEntry("cpu", lambda: not on_gpu(), describe_extension, _load_cpu),
    BackendEntry(
        "cpu-int8", lambda: False, describe_int8_products, _load_cpu_int8, rounds_more=True
    ),
    BackendEntry(
        "metal", lambda: on_gpu() and mx.metal.is_available(), _describe_metal, _load_metal
    ),
    BackendEntry(
        "mlx", lambda: True, lambda: f"MLX on the {'GPU' if on_gpu() else 'CPU'}", lambda: MLX
    ),
    BackendEntry("reference", lambda: False, lambda: "MLX arrays", lambda: REFERENCE),
)
"""All backends. An automatic choice is the first usable backend that suits the device."""
