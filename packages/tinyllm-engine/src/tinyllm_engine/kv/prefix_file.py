"""The format of a file of cached prefixes, written and read one tensor at a time.

The format is safetensors (github.com/huggingface/safetensors). The metadata has an identity. The
last tensor has the CRC-32 of each other one: without it, a damaged page would be read like an
intact page. No more than one tensor of the file is in memory at once, because the pages may take
most of the memory of the machine.
"""

import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

import mlx.core as mx
from tinyllm_qwen.checkpoint.safetensors_file import read_header
from tinyllm_qwen.checkpoint.safetensors_writer import DTYPES, SafetensorsWriter

_CHECKSUMS = "checksums"


def write_tensors(
    path: Path, tensors: Callable[[], Iterable[tuple[str, mx.array]]], identity: str
) -> None:
    """Write tensors to a file, or over an existing one.

    Args:
        path: the file.
        tensors: yields the name and the array of each tensor, not evaluated yet. It is called once
            for the header and once for the data.
        identity: the text that `read_tensors` requires.

    Raises:
        OSError: if the file cannot be written.
    """
    header = {name: (DTYPES[array.dtype], tuple(array.shape)) for name, array in tensors()}
    header[_CHECKSUMS] = ("U32", (len(header),))
    metadata = {"identity": identity}
    with SafetensorsWriter(path, header, metadata=metadata, overwrite=True) as writer:
        checksums = []
        for name, array in tensors():
            checksums.append(zlib.crc32(array_bytes(array)))
            writer.write(name, array)
        writer.write(_CHECKSUMS, mx.array(checksums, dtype=mx.uint32))


def read_tensors(path: Path, identity: str) -> dict[str, mx.array]:
    """Check a file, and return its tensors, which are read when they are evaluated.

    The header is checked before MLX reads the file. A file of any contents then costs no more
    memory than `read_header` allows, and a named pipe is refused instead of awaited.

    Raises:
        ValueError: if the file is damaged or has another identity.
        OSError, RuntimeError: if the file cannot be read.
    """
    names = [name for name in read_header(path) if name != _CHECKSUMS]
    tensors, metadata = _load(path)
    if metadata.get("identity") != identity:
        raise ValueError("it is of another model, or of other settings of pages")
    checksums = [zlib.crc32(array_bytes(tensors.pop(name))) for name in names]
    expected = mx.array(checksums, dtype=mx.uint32)
    if _CHECKSUMS not in tensors or not mx.array_equal(tensors[_CHECKSUMS], expected):
        raise ValueError("it is damaged")
    tensors = _load(path)[0]
    return {name: tensors[name] for name in names}


def _load(path: Path) -> tuple[dict[str, mx.array], dict[str, str]]:
    """Return the tensors of a file, not read yet, and the metadata."""
    loaded = mx.load(str(path), format="safetensors", return_metadata=True)
    return cast("tuple[dict[str, mx.array], dict[str, str]]", loaded)


def array_bytes(array: mx.array) -> memoryview:
    """Return the bytes of an array; MLX's type stubs do not declare the buffer protocol."""
    return memoryview(cast("bytes", mx.contiguous(array).view(mx.uint8).flatten()))
