"""Checks that the C++ extension is installed and works, before any module imports it."""

import importlib
from importlib.resources import files
from types import ModuleType

import mlx.core as mx
from tinyllm_ops import QuantizedTensor

from tinyllm_kernels.cpu.arguments import native_weight
from tinyllm_kernels.errors import BackendError, BrokenBackendError

_REASON_FILE = "no_cpu_backend.txt"


def describe_extension() -> str:
    """Return the instruction set and the number of threads in words.

    Raises:
        BackendError: if the extension is absent or broken.
    """
    native = load_extension()
    try:
        name, threads = native.chosen_instruction_set(), native.thread_count()
    except ValueError as error:  # an invalid environment variable for the number of threads
        raise BrokenBackendError(str(error)) from error
    return f"{name}, {threads} {'thread' if threads == 1 else 'threads'}"


def describe_int8_products() -> str:
    """Return what `describe_extension` returns, and the precision of activations.

    Raises:
        BackendError: if the extension is absent or broken, or this processor has no products of
            8-bit activations.
    """
    description = describe_extension()
    native = load_extension()
    codes, scales = mx.zeros((16, 64), mx.uint32), mx.zeros((16, 8), mx.bfloat16)
    weight = QuantizedTensor(codes, scales, scales, group_size=64, bits=4)
    if not native.uses_int8_activations(native_weight(weight, int8_activations=True)):
        name = native.chosen_instruction_set()
        raise BackendError(f"there are no products of 8-bit activations for {name}: use `cpu`")
    return f"{description}, activations of 8 bits"


def load_extension() -> ModuleType:
    """Return the extension `tinyllm_kernels._cpu`.

    Raises:
        BackendError: if the extension does not load, or was built for another version of MLX.
    """
    try:
        native = importlib.import_module("tinyllm_kernels._cpu")
    except ModuleNotFoundError:
        raise BackendError(_absence_reason()) from None
    except ImportError as error:
        raise BrokenBackendError(f"the extension does not load ({error})") from error
    one = mx.ones((1, 1))
    try:
        native.rms_norm(one, one[0], 0.0)
    except TypeError as error:
        raise BrokenBackendError(
            "the extension was built for another version of MLX: "
            "`uv sync --reinstall-package tinyllm-kernels` builds it anew"
        ) from error
    except ValueError as error:  # an invalid environment variable for the instruction set
        raise BrokenBackendError(str(error)) from error
    return native


def _absence_reason() -> str:
    """Return the reason that the build wrote to a file when it left the extension out.

    In an editable installation the file is not beside the modules: `files` has both folders.
    """
    reason = files("tinyllm_kernels").joinpath(_REASON_FILE)
    if reason.is_file():
        return reason.read_text()
    return "the extension was not built: `uv sync --reinstall-package tinyllm-kernels` builds it"
