"""The check that weights fit into memory, before they are read."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import mlx.core as mx

from tinyllm_qwen.checkpoint.stored_tensor import StoredTensor
from tinyllm_qwen.checkpoint.tensor_reader import loaded_dtype
from tinyllm_qwen.errors import MemoryShortageError
from tinyllm_qwen.format_bytes import format_bytes
from tinyllm_qwen.free_memory import free_memory
from tinyllm_qwen.partition.partition import Slices


def check_memory(
    folder: Path,
    stored: Mapping[str, StoredTensor],
    dtype: mx.Dtype,
    slices: Mapping[str, Slices] | None = None,
    *,
    prepared_bytes: Callable[[dict[str, mx.array]], int],
) -> None:
    """Check that the CPU has the memory for some weights, as loaded and as prepared.

    MLX's allocator for CPUs reports no failure: the system would end this process, or another one.
    The allocator of a GPU has another memory, and raises an error.

    Args:
        folder: the checkpoint, for the message.
        stored: the tensors of the files.
        dtype: the dtype of every floating tensor in memory.
        slices: the parts that are read; None for whole tensors.
        prepared_bytes: returns the bytes that the backend needs for arrays of these shapes and
            dtypes, by name. The arrays have no data.

    Raises:
        MemoryShortageError: if less memory is free.
    """
    if mx.default_device().type == mx.gpu:
        return
    if slices is None:
        shapes = {name: tensor.shape for name, tensor in stored.items()}
    else:
        shapes = {name: tuple(map(len, part)) for name, part in slices.items()}
    dtypes = {name: loaded_dtype(stored[name], dtype) for name in shapes}
    needed = sum(math.prod(shape) * dtypes[name].size for name, shape in shapes.items())
    free = free_memory()
    if needed <= free:  # larger shapes may be too large for arrays
        # MLX allocates an array when it is evaluated, and these never are.
        needed = prepared_bytes(
            {name: mx.zeros(shape, dtypes[name]) for name, shape in shapes.items()}
        )
    if needed > free:
        raise MemoryShortageError(
            f"{folder}: the weights take {format_bytes(needed)} of memory, "
            f"{format_bytes(free)} are free: end other programs, convert the model to fewer bits "
            "(convert --bits 4), or take a smaller one",
            needed=needed,
            free=free,
        )
