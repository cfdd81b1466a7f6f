"""A reader of tensors in batches. Each batch is read and cast before the next batch is read."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import mlx.core as mx

from tinyllm_qwen.checkpoint.stored_tensor import StoredTensor, TensorSlice
from tinyllm_qwen.errors import CheckpointError

Progress = Callable[[int, int], None]
"""A callback that gets two numbers: the bytes processed so far, and all bytes."""

MLX_DTYPES = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}
"""The floating dtypes of a model, by their names in safetensors files."""

STORED_DTYPES = MLX_DTYPES | {"U32": mx.uint32, "U8": mx.uint8}
"""The dtypes of a model with packed matrices, whose codes and float scales are integers."""

# Bytes read between two evaluations: enough to make the cost of an evaluation negligible, and few
# enough that a batch, original and cast, is small in comparison with the model.
_BATCH_BYTES = 8 << 20


def iterate_tensors(
    stored: Mapping[str, StoredTensor], dtype: mx.Dtype | None, progress: Progress | None = None
) -> Iterator[tuple[str, mx.array]]:
    """Yield each tensor by name, in the order of `stored`, cast and in memory.

    The arrays of a file are freed after their last use.

    Args:
        stored: the tensors of the files.
        dtype: the dtype of every floating tensor; None keeps the dtypes of the files.
        progress: a callback with the number of bytes read so far, and of all bytes.

    Raises:
        CheckpointError: if a file cannot be read.
    """
    total, done = sum(tensor.nbytes for tensor in stored.values()), 0
    files = _Files(stored)
    batch: dict[str, mx.array] = {}
    waiting = 0
    for name, tensor in stored.items():
        batch[name] = finished(files.take(tensor), tensor, dtype)
        waiting += tensor.nbytes
        if waiting < _BATCH_BYTES:
            continue
        mx.eval(batch)
        done, waiting = done + waiting, 0
        if progress is not None:
            progress(done, total)
        yield from batch.items()
        batch.clear()
    mx.eval(batch)
    if progress is not None and (waiting or not total):
        progress(total, total)
    yield from batch.items()


def loaded_dtype(tensor: StoredTensor, dtype: mx.Dtype | None) -> mx.Dtype:
    """Return the dtype of a tensor in memory, given the dtype of floating tensors."""
    stored = STORED_DTYPES[tensor.dtype]
    if tensor.dtype not in MLX_DTYPES:
        return stored
    return mx.float32 if tensor.float32 else dtype or stored


def finished(array: mx.array, tensor: StoredTensor, dtype: mx.Dtype | None) -> mx.array:
    """Return the numbers of a file as the model needs them: cast, and norms as factors.

    Args:
        array: the numbers of the file.
        tensor: the tensor that the numbers belong to.
        dtype: the dtype of floating tensors; None keeps the dtype of the file.
    """
    array = array.astype(loaded_dtype(tensor, dtype))
    return array + 1 if tensor.zero_centred else array


class _Files:
    """The files of tensors, opened at their first use. Arrays are dropped after their last use."""

    def __init__(self, stored: Mapping[str, StoredTensor]) -> None:
        """Count how often each array of a file will be used."""
        pieces = [piece for tensor in stored.values() for piece in tensor.pieces]
        self._wanted = Counter((piece.shard, piece.key) for piece in pieces)
        self._open: dict[Path, dict[str, mx.array]] = {}

    def take(self, tensor: StoredTensor) -> mx.array:
        """Return a tensor, not yet evaluated."""
        pieces = [self._take(piece, transposed=tensor.transposed) for piece in tensor.pieces]
        array = mx.stack(pieces) if tensor.stacked else pieces[0]
        return array.reshape(tensor.shape)

    def _take(self, piece: TensorSlice, *, transposed: bool) -> mx.array:
        if piece.shard not in self._open:
            self._open[piece.shard] = _open(piece.shard)
        arrays = self._open[piece.shard]
        self._wanted[piece.shard, piece.key] -= 1
        last = not self._wanted[piece.shard, piece.key]
        array = arrays.pop(piece.key) if last else arrays[piece.key]
        array = array.swapaxes(1, 2) if transposed else array
        array = array if piece.stop is None else array[:, piece.start : piece.stop]
        return mx.contiguous(array) if transposed else array


def _open(shard: Path) -> dict[str, mx.array]:
    """Return the arrays of a file. MLX reads the bytes of an array when it is evaluated."""
    try:
        arrays = mx.load(str(shard), format="safetensors")
    except RuntimeError as error:
        raise CheckpointError(f"{shard} cannot be read: {error}: download it again") from error
    if not isinstance(arrays, dict):
        raise CheckpointError(f"{shard}: expected named tensors, got {type(arrays).__name__}")
    return arrays
