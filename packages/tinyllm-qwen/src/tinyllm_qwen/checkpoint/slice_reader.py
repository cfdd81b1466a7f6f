"""A reader of slices of tensors, which reads only the bytes of the slices.

MLX reads whole tensors. With several ranks, each rank needs only a slice of most tensors. A slice
of rows is contiguous in a file. A slice of columns is one run of bytes per row.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar, cast

import mlx.core as mx

from tinyllm_qwen.checkpoint.safetensors_file import DTYPE_BYTES, read_header
from tinyllm_qwen.checkpoint.stored_tensor import StoredTensor, TensorSlice
from tinyllm_qwen.checkpoint.tensor_reader import STORED_DTYPES, Progress, finished
from tinyllm_qwen.errors import CheckpointError
from tinyllm_qwen.partition.partition import Segments, Slices
from tinyllm_qwen.regular_file import unreadable

T = TypeVar("T")
Ranges = tuple[range, ...]
"""A range of indices for each axis of a tensor."""


def read_slices(
    stored: Mapping[str, StoredTensor],
    slices: Mapping[str, Slices],
    dtype: mx.Dtype | None,
    progress: Progress | None = None,
) -> dict[str, mx.array]:
    """Read a slice of each tensor in `slices`; floating tensors are cast to `dtype`.

    Args:
        stored: the tensors of the files.
        slices: the indices of each axis of each wanted tensor.
        dtype: the dtype of every floating tensor; None keeps the dtypes of the files.
        progress: a callback with the number of bytes read so far, and of all bytes to read.

    Raises:
        CheckpointError: if a file cannot be read.
    """
    total = sum(_nbytes(stored[name], part) for name, part in slices.items())
    arrays: dict[str, mx.array] = {}
    done = 0
    with ExitStack() as stack:
        files: dict[Path, _File] = {}
        for name, part in slices.items():
            tensor = stored[name]
            data = bytearray(_nbytes(tensor, part))
            buffer = memoryview(data)
            for piece, ranges in _pieces(tensor, part):
                if piece.shard not in files:
                    files[piece.shard] = stack.enter_context(_File(piece.shard))
                # Ranges of a whole tensor refer to its shape in the model. Files may store another
                # shape of a convolution, with the numbers in the same order.
                whole = not (tensor.stacked or tensor.transposed) and piece.stop is None
                shape = tensor.shape if whole else None
                buffer = files[piece.shard].read(piece, ranges, buffer, shape)
            # MLX accepts any buffer, but its type stubs do not declare that.
            array = mx.array(cast(list[int], memoryview(data))).view(STORED_DTYPES[tensor.dtype])
            array = array.reshape(_as_stored(tuple(len(axis) for axis in part), tensor))
            array = mx.contiguous(array.swapaxes(1, 2)) if tensor.transposed else array
            arrays[name] = finished(array, tensor, dtype)
            mx.eval(arrays[name])
            done += len(data)
            if progress is not None:
                progress(done, total)
    return arrays


def _nbytes(tensor: StoredTensor, part: Slices) -> int:
    return math.prod(map(len, part)) * DTYPE_BYTES[tensor.dtype]


def _as_stored(axes: tuple[T, ...], tensor: StoredTensor) -> tuple[T, ...]:
    """Return the axes of a tensor (sizes or ranges), given in the model's order, as in the file."""
    return (axes[0], axes[2], axes[1]) if tensor.transposed else axes


def _pieces(tensor: StoredTensor, part: Slices) -> Iterator[tuple[TensorSlice, Ranges]]:
    """Yield the pieces that overlap a slice, each with the ranges in the tensor of the file."""
    first, *others = part
    rest = tuple(axis for axis in others if isinstance(axis, range))
    if tensor.stacked:
        yield from ((tensor.pieces[index], rest) for index in first)
        return
    (piece,) = tensor.pieces
    segments = first.ranges if isinstance(first, Segments) else (first,)
    if piece.stop is None:
        yield from ((piece, _as_stored((segment, *rest), tensor)) for segment in segments)
    else:  # one of two matrices that the file has fused
        (experts,), (rows, columns) = segments, rest
        rows = range(piece.start + rows.start, piece.start + rows.stop)
        yield piece, _as_stored((experts, rows, columns), tensor)


class _File:
    """An open safetensors file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries = read_header(path)
        # `read_header` has checked that the data end with the file and have no gaps.
        size = sum(entry.nbytes for entry in self._entries.values())
        self._data_start = path.stat().st_size - size

    def __enter__(self) -> "_File":
        try:
            # Unbuffered, because a buffer would read more bytes than requested.
            self._file = self._path.open("rb", buffering=0)
        except OSError as error:
            raise unreadable(self._path, error) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(
        self,
        piece: TensorSlice,
        ranges: Ranges,
        buffer: memoryview,
        shape: tuple[int, ...] | None = None,
    ) -> memoryview:
        """Read a slice of a tensor into the start of `buffer`; return the unused rest.

        `shape` is the shape that `ranges` refer to; None for the shape in the file.
        """
        entry = self._entries[piece.key]
        try:
            for offset, count in _runs(shape or entry.shape, DTYPE_BYTES[entry.dtype], ranges):
                self._file.seek(self._data_start + entry.start + offset)
                self._fill(buffer[:count])
                buffer = buffer[count:]
        except OSError as error:
            raise unreadable(self._path, error) from error
        return buffer

    def _fill(self, buffer: memoryview) -> None:
        """Read until `buffer` is full, because one read may return fewer bytes than requested."""
        while buffer:
            count = self._file.readinto(buffer)
            if not count:
                raise CheckpointError(f"{self._path} is truncated: download it again")
            buffer = buffer[count:]


def _runs(shape: tuple[int, ...], size: int, ranges: Ranges) -> Iterator[tuple[int, int]]:
    """Yield the offset and length, in bytes, of each contiguous run of a slice.

    Args:
        shape: the shape of the tensor.
        size: the bytes of a number.
        ranges: the slice.
    """
    # Trailing axes that are read in full are contiguous: skip them, and count them in `width`.
    axis = len(ranges)
    while axis > 0 and len(ranges[axis - 1]) == shape[axis - 1]:
        axis -= 1
    width = math.prod(shape[axis:]) * size
    starts = [0]
    for count, part in zip(shape[: max(axis - 1, 0)], ranges, strict=False):
        starts = [start * count + index for start in starts for index in part]
    if axis == 0:
        yield 0, width
        return
    last, count = ranges[axis - 1], shape[axis - 1]
    for start in starts:
        yield (start * count + last.start) * width, len(last) * width
