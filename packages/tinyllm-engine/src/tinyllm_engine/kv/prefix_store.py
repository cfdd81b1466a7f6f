"""The prefix cache in a file, so that it survives a restart."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import cast

import mlx.core as mx
from tinyllm_layers import PagedCache
from tinyllm_ops import QuantizedTensor
from tinyllm_qwen.language_model import LanguageModel

from tinyllm_engine.kv.block_manager import HASH_BYTES, BlockManager

_FORMAT = "2"
"""The version of file, block hashes and page layout, raised with each change."""

_HASHES = "hashes"

_SAMPLE = 512
"""Numbers of each weight in a fingerprint: a fine-tuned model differs nearly everywhere."""

_log = logging.getLogger(__name__)


class PrefixStore:
    """Saves the registered pages to a file, and loads them into the prefix cache after a restart.

    The file is a safetensors file (github.com/huggingface/safetensors): a row of bytes for the
    hash of each page, and the pages of each array of each layer, least recently used first. An
    invalid file does not stop the engine: the reason is logged, and the prefix cache starts empty.
    """

    def __init__(self, pages: BlockManager, caches: Sequence[PagedCache], identity: str) -> None:
        """Refer to the pages of an engine.

        Args:
            pages: the allocation of pages.
            caches: the contents of pages, one cache a layer.
            identity: everything that decides the contents of a page. Files of another identity are
                ignored.
        """
        self._pages = pages
        self._caches = caches
        self._identity = f"{_FORMAT} {identity}"

    def save(self, path: Path) -> int:
        """Write all registered pages, at most `max_cached` of them.

        The pages are gathered in memory first, which takes as much memory again. An existing file
        is replaced in one step.

        Returns:
            The number of pages in the file; 0 if it could not be written: see the log.
        """
        found = list(self._pages.registered().items())
        found = found[max(0, len(found) - self._pages.max_cached) :]
        if not found:
            return 0
        index = mx.array([page for _, page in found], dtype=mx.int32)
        hashes = mx.array([list(block_hash) for block_hash, _ in found], dtype=mx.uint8)
        tensors = {name: array[index] for name, array in self._arrays().items()}
        tensors[_HASHES] = hashes
        metadata = {"identity": self._identity, "checksum": _checksum(tensors)}
        # MLX adds the suffix where it is missing, and reports no failure to write.
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.safetensors")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            mx.save_safetensors(str(partial), tensors, metadata)
            expected, actual = sum(t.nbytes for t in tensors.values()), partial.stat().st_size
            if actual < expected:
                raise OSError(f"expected {expected} bytes on the disk, got {actual}: is it full?")
            partial.replace(path)
        except (OSError, RuntimeError) as error:
            _log.warning("%s: prefixes were not saved: %s", path, error)
            if partial.exists():
                partial.unlink()
            return 0
        _log.info("%s: %d pages of prefixes were saved", path, len(found))
        return len(found)

    def load(self, path: Path) -> int:
        """Load the pages of a file, the most recently used ones if there is no room for all.

        Returns:
            The number of pages loaded; 0 without a file, or if it cannot be used: see the log.
        """
        if not path.exists():
            return 0
        try:
            tensors = self._read(path)
        except (OSError, RuntimeError, ValueError) as error:
            _log.warning("%s: no prefixes were loaded: %s", path, error)
            return 0
        count = min(len(tensors[_HASHES]), self._pages.max_cached, self._pages.num_pages)
        if not count:
            return 0
        pages = self._pages.allocate(count)
        hashes = cast("list[list[int]]", tensors[_HASHES][-count:].tolist())
        for page, block_hash in zip(pages, hashes, strict=True):
            self._pages.register(page, bytes(block_hash))
        index = mx.array(pages, dtype=mx.int32)
        for name, array in self._arrays().items():
            array[index] = tensors[name][-count:]
        mx.eval(list(self._arrays().values()))
        self._pages.free(pages[::-1])  # the first ones, least recently used, are evicted first
        _log.info("%s: %d pages of prefixes were loaded", path, count)
        return count

    def _read(self, path: Path) -> dict[str, mx.array]:
        """Return the tensors of a file, if it is intact and of this identity."""
        loaded = mx.load(str(path), format="safetensors", return_metadata=True)
        tensors, metadata = cast("tuple[dict[str, mx.array], dict[str, str]]", loaded)
        if metadata.get("identity") != self._identity:
            raise ValueError("it is of another model, or of other settings of pages")
        arrays, count = self._arrays(), len(tensors.get(_HASHES, ()))
        expected = {name: ((count, *a.shape[1:]), a.dtype) for name, a in arrays.items()}
        expected[_HASHES] = ((count, HASH_BYTES), mx.uint8)
        actual = {name: (tuple(array.shape), array.dtype) for name, array in tensors.items()}
        if actual != expected or metadata.get("checksum") != _checksum(tensors):
            raise ValueError("it is damaged")
        return tensors

    def _arrays(self) -> dict[str, mx.array]:
        """Return the arrays of all pages, by their names in a file."""
        return {
            f"layers.{layer}.{part}": array
            for layer, cache in enumerate(self._caches)
            for part, array in enumerate(cache.arrays)
        }


def _checksum(tensors: Mapping[str, mx.array]) -> str:
    """Return a hash of all bytes: a page under a wrong hash would be read like a right one."""
    digest = blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(_buffer(tensors[name]))
    return digest.hexdigest()


def model_fingerprint(model: LanguageModel) -> str:
    """Return a hash of a model's config and of `_SAMPLE` numbers of each of its weights.

    It tells apart models that were trained differently, not models that differ in a few numbers.
    """
    digest = blake2b(repr((model.config, model.dtype)).encode(), digest_size=16)
    for weight in model.weights():
        if isinstance(weight, QuantizedTensor):
            digest.update(repr((weight.bits, weight.group_size, weight.mode)).encode())
        for array in weight.arrays if isinstance(weight, QuantizedTensor) else (weight,):
            digest.update(repr((array.shape, array.dtype)).encode())
            numbers = array.flatten()
            digest.update(_buffer(numbers[:: max(1, numbers.size // _SAMPLE)]))
    return digest.hexdigest()


def _buffer(array: mx.array) -> memoryview:
    """Return the memory of an array; MLX's type stubs do not declare the buffer protocol."""
    return memoryview(cast("bytes", mx.contiguous(array).view(mx.uint8)))
