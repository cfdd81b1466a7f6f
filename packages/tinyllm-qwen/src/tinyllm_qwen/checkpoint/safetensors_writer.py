"""A writer of safetensors files that needs only one array in memory at a time.

Format: https://github.com/huggingface/safetensors#format. `mx.save_safetensors` needs all arrays of
a file in memory at once. This writer needs only their shapes and dtypes in advance.
"""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import cast

import mlx.core as mx

from tinyllm_qwen.checkpoint.safetensors_file import DTYPE_BYTES
from tinyllm_qwen.checkpoint.tensor_reader import STORED_DTYPES

DTYPES = {dtype: name for name, dtype in STORED_DTYPES.items()}
_ALIGNMENT = 8  # the offset of the data in the file is a multiple of this number


class SafetensorsWriter:
    """A safetensors file in progress: a context manager that closes the file."""

    def __init__(
        self,
        path: Path,
        tensors: Mapping[str, tuple[str, tuple[int, ...]]],
        *,
        metadata: Mapping[str, str] | None = None,
        overwrite: bool = False,
    ) -> None:
        """Create the file and write its header.

        Args:
            path: the path of the file.
            tensors: the dtype (as spelled in the header, such as "BF16") and the shape of each
                tensor by name, in the order in which they will be written.
            metadata: texts by name.
            overwrite: whether the file may exist.

        Raises:
            OSError: if the file exists, or cannot be written.
        """
        self._path = path
        self._waiting = dict(tensors)
        self._file = path.open("wb" if overwrite else "xb")
        try:
            self._file.write(encode_header(tensors, metadata or {}))
        except BaseException:
            self._file.close()
            raise

    def write(self, name: str, array: mx.array) -> None:
        """Write the next tensor.

        Raises:
            ValueError: if `name` is not the next tensor, or dtype or shape differ from the header.
            OSError: if the tensor cannot be written.
        """
        expected = next(iter(self._waiting.items()), None)
        actual = (name, (DTYPES.get(array.dtype, str(array.dtype)), tuple(array.shape)))
        if actual != expected:
            raise ValueError(f"{self._path.name}: expected the tensor {expected}, got {actual}")
        if array.size:
            # A row-contiguous array supports the buffer protocol, but MLX's type stubs omit it.
            self._file.write(cast("bytes", mx.contiguous(array).view(mx.uint8)))
        del self._waiting[name]

    def __enter__(self) -> "SafetensorsWriter":
        """Return the writer."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _where: TracebackType | None,
    ) -> None:
        """Close the file. Without an exception, require that all tensors were written."""
        self._file.close()
        if kind is None and self._waiting:
            raise ValueError(f"{self._path.name}: {len(self._waiting)} tensors were not written")


def encode_header(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> bytes:
    """Return the start of a file: the length of the header, and the header."""
    # transformers needs "format".
    header: dict[str, object] = {"__metadata__": {"format": "mlx", **metadata}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + math.prod(shape) * DTYPE_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)  # the 8 bytes of the length are aligned as well
    return struct.pack("<Q", len(text)) + text
