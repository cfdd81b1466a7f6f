"""The check that weights fit into memory, before they are read."""

import math
from collections.abc import Callable, Mapping, Sequence
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
    parts: Sequence[Mapping[str, Slices]] | None = None,
    *,
    prepared_bytes: Callable[[dict[str, mx.array]], int],
    free: int | None = None,
) -> None:
    """Check that the device has the memory for some weights, as loaded and as prepared.

    MLX's allocator for CPUs reports no failure: the system would end this process, or another one.

    Args:
        folder: the checkpoint, for the message.
        stored: the tensors of the files.
        dtype: the dtype of every floating tensor in memory.
        parts: the slices that each process of this machine reads; None for one that reads all.
        prepared_bytes: returns the bytes that the backend needs for arrays of these shapes and
            dtypes, by name. The arrays have no data.
        free: the free bytes; None to find them.

    Raises:
        MemoryShortageError: if less memory is free.
    """
    if parts is None:
        all_shapes = [{name: tensor.shape for name, tensor in stored.items()}]
    else:
        all_shapes = [
            {name: tuple(map(len, each)) for name, each in part.items()} for part in parts
        ]
    dtypes = {name: loaded_dtype(tensor, dtype) for name, tensor in stored.items()}
    needed = sum(
        math.prod(shape) * dtypes[name].size
        for shapes in all_shapes
        for name, shape in shapes.items()
    )
    free = free_memory() if free is None else free
    if needed <= free:  # larger shapes may be too large for arrays
        # MLX allocates an array when it is evaluated, and these never are.
        needed = sum(
            prepared_bytes({name: mx.zeros(shape, dtypes[name]) for name, shape in shapes.items()})
            for shapes in all_shapes
        )
    if needed > free:
        whose = "" if len(all_shapes) == 1 else f" of the {len(all_shapes)} ranks on this machine"
        raise MemoryShortageError(
            f"{folder}: the weights{whose} take {format_bytes(needed)} of memory, "
            f"{format_bytes(free)} are free: end other programs, take a smaller model, or one in "
            "4 bits (convert --bits 4 makes it from files in 16 bits)",
            needed=needed,
            free=free,
        )
