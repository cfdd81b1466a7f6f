"""The header of a safetensors file: names, dtypes, shapes and offsets, without the data.

Format: https://github.com/huggingface/safetensors#format. A file consists of the little-endian
header length (8 bytes), the header (a JSON object), and the bytes of the tensors without gap or
overlap. MLX reads tensors lazily, so it would find a damaged file only during a forward pass. The
checks of this module find the damage before.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tinyllm_qwen.config.fields import show
from tinyllm_qwen.config.json_object import parse_json_object
from tinyllm_qwen.errors import CheckpointError
from tinyllm_qwen.regular_file import regular_file_size, unreadable

MAX_HEADER_BYTES = 100_000_000  # the limit of the reference implementation of the format
MAX_AXES = 8
_PREFIX = struct.Struct("<Q")
_METADATA = "__metadata__"

# Bytes per number of the dtypes that both the format and MLX support.
DTYPE_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "C64": 8,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor of a file.

    Attributes:
        dtype: the dtype as spelled in the header, such as "BF16".
        shape: the row-major shape; empty for a scalar.
        start: the offset of the first byte of the data, counted from the end of the header.
        nbytes: the size of the data in bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


def read_header(path: Path) -> Mapping[str, TensorEntry]:
    """Read and check the header of a file. Time and memory are bounded by the length of the file.

    Returns:
        The tensors by name, in the order of their data in the file.

    Raises:
        CheckpointError: if the file is truncated, or is not a safetensors file that MLX can read.
    """
    file_size = regular_file_size(path)
    try:
        with path.open("rb") as file:
            prefix = file.read(_PREFIX.size)
            if len(prefix) < _PREFIX.size:
                raise CheckpointError(
                    f"{path} is truncated: expected at least {_PREFIX.size} bytes, the file has "
                    f"{file_size}: download it again"
                )
            (header_size,) = _PREFIX.unpack(prefix)
            if header_size > MAX_HEADER_BYTES:
                raise CheckpointError(
                    f"{path} is not a safetensors file: its header would be {header_size} bytes "
                    f"long, expected at most {MAX_HEADER_BYTES} (a text of a few lines here is a "
                    "Git LFS pointer: run `git lfs pull`)"
                )
            data_size = file_size - _PREFIX.size - header_size
            if data_size < 0:
                raise _truncated(path, _PREFIX.size + header_size, file_size)
            header = file.read(header_size)
    except OSError as error:
        raise unreadable(path, error) from error
    values = parse_json_object(header, f"{path}: header")
    _check_metadata(path, values.pop(_METADATA, None))
    entries = {name: _entry(path, name, value) for name, value in values.items()}
    entries = dict(sorted(entries.items(), key=lambda item: (item[1].start, item[1].nbytes)))
    end = 0
    for name, entry in entries.items():
        if entry.start != end:
            raise _invalid(path, f"{name[:80]} starts at byte {entry.start}, expected {end}")
        end += entry.nbytes
    if end > data_size:
        raise _truncated(path, _PREFIX.size + header_size + end, file_size)
    if end < data_size:
        raise _invalid(path, f"{data_size - end} bytes belong to no tensor")
    return entries


def _entry(path: Path, name: str, value: object) -> TensorEntry:
    """Check one entry of the header."""
    if not name.isprintable():  # error messages quote the name
        raise _invalid(path, f"{show(name)}: expected a name of printable characters")
    label = name[:80]
    if not isinstance(value, dict):
        raise _invalid(path, f"{label}: expected a JSON object, got {show(value)}")
    dtype, shape, offsets = (value.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise CheckpointError(
            f"{path}: {label}: dtype {show(dtype)} is not supported, expected one of "
            f"{', '.join(DTYPE_BYTES)}: use a checkpoint in one of them, such as BF16"
        )
    dims = _sizes(shape)
    if dims is None or len(dims) > MAX_AXES:
        raise _invalid(
            path, f"{label}: shape: expected at most {MAX_AXES} sizes, got {show(shape)}"
        )
    edges = _sizes(offsets)
    if edges is None or len(edges) != 2 or edges[0] > edges[1]:
        raise _invalid(
            path, f"{label}: data_offsets: expected a start and an end, got {show(offsets)}"
        )
    nbytes = math.prod(dims) * DTYPE_BYTES[dtype]
    if edges[1] - edges[0] != nbytes:
        raise _invalid(
            path,
            f"{label}: {dtype} {dims} needs {show(nbytes)} bytes, its data_offsets span "
            f"{show(edges[1] - edges[0])}",
        )
    return TensorEntry(dtype=dtype, shape=dims, start=edges[0], nbytes=nbytes)


def _check_metadata(path: Path, value: object) -> None:
    """Require an object of strings, or null, which MLX writes instead of an empty object."""
    if value is None:
        return
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _invalid(path, f"{_METADATA}: expected texts by name, got {show(value)}")


def _sizes(value: object) -> tuple[int, ...] | None:
    """Return a list of integers from 0 to 2^63 - 1 as a tuple, or None for any other value."""
    if not isinstance(value, list):
        return None
    sizes = tuple(item for item in value if type(item) is int and 0 <= item < 1 << 63)
    return sizes if len(sizes) == len(value) else None


def _truncated(path: Path, promised: int, actual: int) -> CheckpointError:
    return CheckpointError(
        f"{path} is truncated: its header promises {promised} bytes, the file has {actual}: "
        "download it again"
    )


def _invalid(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path} is not a valid safetensors file: {reason}: download it again")
