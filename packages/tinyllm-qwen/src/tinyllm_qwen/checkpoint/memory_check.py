"""The check that weights fit into memory, before they are read."""

import math
from collections.abc import Mapping
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
) -> None:
    """Check that the CPU has the memory for some weights.

    MLX's allocator for CPUs reports no failure: the system would end this process, or another one.
    The allocator of a GPU has another memory, and raises an error.

    Args:
        folder: the checkpoint, for the message.
        stored: the tensors of the files.
        dtype: the dtype of every floating tensor in memory.
        slices: the parts that are read; None for whole tensors.

    Raises:
        MemoryShortageError: if less memory is free.
    """
    if mx.default_device().type == mx.gpu:
        return
    if slices is None:
        numbers = {name: math.prod(tensor.shape) for name, tensor in stored.items()}
    else:
        numbers = {name: math.prod(map(len, part)) for name, part in slices.items()}
    needed = sum(count * loaded_dtype(stored[name], dtype).size for name, count in numbers.items())
    free = free_memory()
    if needed > free:
        raise MemoryShortageError(
            f"{folder}: the weights take {format_bytes(needed)} of memory, "
            f"{format_bytes(free)} are free: end other programs, convert the model to fewer bits "
            "(convert --bits 4), or take a smaller one",
            needed=needed,
            free=free,
        )
