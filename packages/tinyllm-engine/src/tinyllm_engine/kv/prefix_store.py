"""Full pages in a file, so that what was computed once survives a restart."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import cast

import mlx.core as mx
from tinyllm_layers import PagedCache

from tinyllm_engine.kv.block_hash import KEY_BYTES
from tinyllm_engine.kv.block_manager import BlockManager
from tinyllm_engine.kv.fingerprint import buffer

_FORMAT = "1"
"""To be raised whenever the file, the keys of pages or the layout of pages changes."""

_KEYS = "keys"

_log = logging.getLogger(__name__)


class PrefixStore:
    """Saves the pages that can be found by their keys, and keeps them again after a restart.

    The file is a safetensors file (github.com/huggingface/safetensors): a row of bytes for the key
    of each page, and the pages of each array of each layer, the longest unused first. Nothing that
    is wrong with it stops an engine: the log says what, and the cache starts empty.
    """

    def __init__(self, pages: BlockManager, caches: Sequence[PagedCache], identity: str) -> None:
        """Stand between an engine's pages and a file.

        Args:
            pages: whose page is which.
            caches: the pages, one cache a layer.
            identity: of everything that decides what is in a page. Files of another are ignored.
        """
        self._pages = pages
        self._caches = caches
        self._identity = f"{_FORMAT} {identity}"

    def save(self, path: Path) -> int:
        """Write all pages that have a name, at most as many as may be kept.

        They are gathered in memory first, which takes as much again as they do. A file that is
        there already is replaced in one step.

        Returns:
            How many pages the file holds; 0 if it could not be written, which the log explains.
        """
        named = list(self._pages.named().items())
        named = named[max(0, len(named) - self._pages.max_kept) :]
        if not named:
            return 0
        index = mx.array([page for _, page in named], dtype=mx.int32)
        keys = mx.array([list(key) for key, _ in named], dtype=mx.uint8)
        tensors = {name: array[index] for name, array in self._arrays().items()} | {_KEYS: keys}
        metadata = {"identity": self._identity, "checksum": _checksum(tensors)}
        # MLX adds the suffix where it is missing, and tells of no failure to write.
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
        _log.info("%s: %d pages of prefixes were saved", path, len(named))
        return len(named)

    def load(self, path: Path) -> int:
        """Keep the pages of a file, the latest used if there is no room for all.

        Returns:
            How many are kept; 0 where there is no file, or none that can be used.
        """
        if not path.exists():
            return 0
        try:
            tensors = self._read(path)
        except (OSError, RuntimeError, ValueError) as error:
            _log.warning("%s: no prefixes were loaded: %s", path, error)
            return 0
        count = min(len(tensors[_KEYS]), self._pages.max_kept, self._pages.num_pages)
        if not count:
            return 0
        pages = self._pages.take(count)
        keys = cast("list[list[int]]", tensors[_KEYS][-count:].tolist())
        for page, key in zip(pages, keys, strict=True):
            self._pages.name(page, bytes(key))
        index = mx.array(pages, dtype=mx.int32)
        for name, array in self._arrays().items():
            array[index] = tensors[name][-count:]
        mx.eval(list(self._arrays().values()))
        self._pages.release(pages[::-1])  # the first, longest unused, are to be given away first
        _log.info("%s: %d pages of prefixes were loaded", path, count)
        return count

    def _read(self, path: Path) -> dict[str, mx.array]:
        """The tensors of a file, if they are what was written and fit."""
        loaded = mx.load(str(path), format="safetensors", return_metadata=True)
        tensors, metadata = cast("tuple[dict[str, mx.array], dict[str, str]]", loaded)
        if metadata.get("identity") != self._identity:
            raise ValueError("it is of another model, or of other settings of pages")
        arrays, count = self._arrays(), len(tensors.get(_KEYS, ()))
        expected = {name: ((count, *a.shape[1:]), a.dtype) for name, a in arrays.items()}
        expected[_KEYS] = ((count, KEY_BYTES), mx.uint8)
        actual = {name: (tuple(array.shape), array.dtype) for name, array in tensors.items()}
        if actual != expected or metadata.get("checksum") != _checksum(tensors):
            raise ValueError("it is damaged")
        return tensors

    def _arrays(self) -> dict[str, mx.array]:
        """All pages, by the names that they have in a file."""
        return {
            f"layers.{layer}.{part}": array
            for layer, cache in enumerate(self._caches)
            for part, array in enumerate(cache.arrays)
        }


def _checksum(tensors: Mapping[str, mx.array]) -> str:
    """A hash of all bytes: a wrong key would be read as silently as a right one."""
    digest = blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(buffer(tensors[name]))
    return digest.hexdigest()
