"""Which implementations there are on this machine."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import mlx.core as mx
from tinyllm_ops import MLX, REFERENCE, OpSet

from tinyllm_kernels.cpu import opset_of
from tinyllm_kernels.metal import METAL


class BackendError(RuntimeError):
    """A backend was asked for that this machine does not have; the message says why."""


@dataclass(frozen=True)
class Backend:
    """One implementation of the contract.

    Attributes:
        name: as `opset` takes it.
        present: whether it can be used here.
        detail: what it runs on, or why it is not there.
    """

    name: str
    present: bool
    detail: str

    def __str__(self) -> str:
        """One line for people."""
        return f"{self.name}: {self.detail}" if self.present else f"no {self.name}: {self.detail}"


def available() -> tuple[Backend, ...]:
    """Say of each backend whether it is there, the fastest first; `reference` always is."""
    cpu = Backend("cpu", *_try(lambda: _describe(_native())))
    metal = Backend("metal", *_try(_metal_device))
    device = "GPU" if mx.default_device().type == mx.gpu else "CPU"
    return (
        cpu,
        metal,
        Backend("mlx", True, f"MLX on the {device}"),
        Backend("reference", True, "MLX arrays"),
    )


def opset(name: str) -> OpSet:
    """Give the OpSet of a backend.

    Raises:
        BackendError: if this machine does not have it.
        ValueError: if there is no such backend.
    """
    if name == "cpu":
        return opset_of(_native())
    if name == "metal":
        _metal_device()
        return METAL
    known = {"mlx": MLX, "reference": REFERENCE}
    if name not in known:
        names = ", ".join(["cpu", "metal", *known])
        raise ValueError(f"name: expected one of {names}, got {name!r}")
    return known[name]


def _try(describe: Callable[[], str]) -> tuple[bool, str]:
    """Whether a backend describes itself, and how; or why it cannot."""
    try:
        return True, describe()
    except BackendError as error:
        return False, str(error)


def _metal_device() -> str:
    """The GPU that Metal kernels run on."""
    if not mx.metal.is_available():
        raise BackendError(
            "MLX finds no Metal device; the kernels need a Mac with Apple silicon "
            "(their tests run anywhere, under metalhost)"
        )
    if mx.default_device().type != mx.gpu:
        raise BackendError("MLX's default device is the CPU: `mx.set_default_device(mx.gpu)`")
    return f"Metal, {mx.device_info(mx.gpu)['device_name']}"


def _native() -> ModuleType:
    """The extension, once it has been seen to share arrays with the MLX that is installed."""
    try:
        module = importlib.import_module("tinyllm_kernels._cpu")
    except ModuleNotFoundError:
        raise BackendError(_why_absent()) from None
    except ImportError as error:
        raise BackendError(f"the extension does not load ({error})") from error
    one = mx.ones((1, 1))
    try:
        module.rms_norm(one, one[0], 0.0)
    except TypeError as error:
        raise BackendError(
            "the extension was built for another version of MLX: "
            "`uv sync --reinstall-package tinyllm-kernels` builds it anew"
        ) from error
    except ValueError as error:  # of the environment variable that chooses the instruction set
        raise BackendError(str(error)) from error
    return module


def _why_absent() -> str:
    """What the build said when it left the extension out."""
    reason = Path(__file__).parent / "no_cpu_backend.txt"
    return reason.read_text() if reason.is_file() else "the extension was not built"


def _describe(module: ModuleType) -> str:
    """Instruction set and threads."""
    try:
        tier, threads = module.chosen_tier(), module.thread_count()
    except ValueError as error:  # of the environment variable that sets the threads
        raise BackendError(str(error)) from error
    return f"{tier}, {threads} {'thread' if threads == 1 else 'threads'}"
