"""A file that keeps the prefix cache across restarts."""

import logging
import zlib
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path

import mlx.core as mx
from tinyllm_layers import PagedCache, RecurrentPool
from tinyllm_ops import QuantizedTensor
from tinyllm_qwen.language_model import LanguageModel
from tinyllm_qwen.regular_file import exists
from tinyllm_qwen.tolist import int_rows

from tinyllm_engine.config import EngineSettings
from tinyllm_engine.kv.block_manager import HASH_BYTES, BlockManager
from tinyllm_engine.kv.file_replacement import remove_leftovers, replacement
from tinyllm_engine.kv.page_pool import PooledCache
from tinyllm_engine.kv.prefix_file import array_bytes, read_tensors, write_tensors
from tinyllm_engine.kv.snapshot_store import SnapshotStore

_FORMAT = "5"
"""The version of the format. Raise it if the file, the block hashes or the page layout change."""

_HASHES = "hashes"
_SNAPSHOTS = "snapshots"
"""The names of the tensors of block hashes, of pages and of snapshots."""

_CHUNK_BYTES = 1 << 24
"""The number of bytes of a weight that one thread reads at a time for a fingerprint."""

_log = logging.getLogger(__name__)


class PrefixStore:
    """Saves the registered pages to a file, and loads them into the prefix cache after a restart.

    One tensor of the file has a row of bytes for the hash of each page. The other tensors hold the
    pages of each array of each layer. Pages are ordered by their last use, least recently used
    first. The same holds for the snapshots of recurrent layers, if there are any. An invalid file
    does not stop the engine: the reason is logged, and the prefix cache starts empty.
    """

    def __init__(
        self,
        block_manager: BlockManager,
        snapshots: SnapshotStore | None,
        caches: Sequence[PooledCache],
        identity: str,
    ) -> None:
        """Make a store for the pages of an engine.

        Args:
            block_manager: the allocation of pages.
            snapshots: the snapshots of recurrent states; None without recurrent layers.
            caches: the contents of pages and slots, one cache per layer.
            identity: text that names the model and all settings that determine the contents of a
                page. A file with another identity is ignored.
        """
        self._block_manager = block_manager
        self._snapshots = snapshots
        self._caches = caches
        self._identity = f"{_FORMAT} {identity}"

    def save(self, path: Path) -> int:
        """Write the registered pages, at most the `max_cached` last used pages, to a file.

        Snapshots are written if their pages are. The pages of one array of one layer at a time are
        copied in memory. An existing file is replaced atomically.

        Returns:
            The number of pages in the file; 0 if the write failed, with the reason in the log.
        """
        found = list(self._block_manager.registered().items())
        pages = dict(found[max(0, len(found) - self._block_manager.max_cached) :])
        if not pages:
            return 0
        snapshots = {} if self._snapshots is None else self._snapshots.registered
        snapshots = {each: slot for each, slot in snapshots.items() if each in pages}

        def tensors() -> Iterator[tuple[str, mx.array]]:
            yield from _rows(_HASHES, pages, self._arrays())
            yield from _rows(_SNAPSHOTS, snapshots, self._states())

        try:
            with replacement(path) as partial:
                write_tensors(partial, tensors, self._identity)
        except OSError as error:
            _log.warning("%s: prefixes were not saved: %s", path, error)
            return 0
        _log.info("%s: %d pages and %d snapshots were saved", path, len(pages), len(snapshots))
        return len(pages)

    def load(self, path: Path) -> int:
        """Load the pages of a file. If not all fit, the most recently used pages are loaded.

        Temporary files that killed processes left beside the file are removed.

        Returns:
            The number of loaded pages; 0 without a file, or if the file cannot be used, with the
            reason in the log.
        """
        try:
            remove_leftovers(path)
            if not exists(path):
                return 0
            tensors = self._read(path)
        except (OSError, RuntimeError, ValueError) as error:
            _log.warning("%s: no prefixes were loaded: %s", path, error)
            return 0
        count = min(
            len(tensors[_HASHES]), self._block_manager.max_cached, self._block_manager.num_pages
        )
        if not count:
            return 0
        pages, hashes = self._block_manager.allocate(count), _hashes(tensors[_HASHES])[-count:]
        for page, block_hash in zip(pages, hashes, strict=True):
            self._block_manager.register(page, block_hash)
        _write(self._arrays(), pages, {name: tensors.pop(name)[-count:] for name in self._arrays()})
        snapshots = self._load_snapshots(tensors, set(hashes))
        # The first pages of the file were used least recently. `free` starts with the last page of
        # its argument, and the page that is freed first is evicted first.
        self._block_manager.free(pages[::-1])
        _log.info("%s: %d pages and %d snapshots were loaded", path, count, snapshots)
        return count

    def _load_snapshots(self, tensors: Mapping[str, mx.array], loaded: Set[bytes]) -> int:
        """Load the snapshots of a file whose pages were loaded; return their number."""
        if self._snapshots is None or _SNAPSHOTS not in tensors:
            return 0
        row_of = {each: row for row, each in enumerate(_hashes(tensors[_SNAPSHOTS]))}
        found = [each for each in row_of if each in loaded]
        found = found[max(0, len(found) - len(self._snapshots.slots)) :]
        if found:
            slots = [self._snapshots.restore(each) for each in found]
            index = mx.array([row_of[each] for each in found], dtype=mx.int32)
            _write(self._states(), slots, {name: tensors[name][index] for name in self._states()})
        return len(found)

    def _read(self, path: Path) -> dict[str, mx.array]:
        """Return the tensors of a file, checked and not read yet.

        Raises:
            ValueError: if the file is damaged or has another identity.
            OSError, RuntimeError: if the file cannot be read.
        """
        tensors = read_tensors(path, self._identity)
        expected = _shapes(_HASHES, self._arrays(), tensors)
        if _SNAPSHOTS in tensors:
            expected |= _shapes(_SNAPSHOTS, self._states(), tensors)
        actual = {name: (tuple(array.shape), array.dtype) for name, array in tensors.items()}
        if actual != expected:
            raise ValueError("it is damaged")
        return tensors

    def _arrays(self) -> dict[str, mx.array]:
        """Return the arrays of all layers, `P ...` with P pages, by their names in a file."""
        return {
            f"layers.{layer}.{part}": array
            for layer, cache in enumerate(self._caches)
            if isinstance(cache, PagedCache)
            for part, array in enumerate(cache.arrays)
        }

    def _states(self) -> dict[str, mx.array]:
        """Return the arrays of all recurrent layers, `P ...` with P slots, by their names."""
        return {
            f"states.{layer}.{part}": array
            for layer, cache in enumerate(self._caches)
            if isinstance(cache, RecurrentPool)
            for part, array in enumerate(cache.arrays)
        }


def _rows(
    name: str, numbers: Mapping[bytes, int], arrays: Mapping[str, mx.array]
) -> Iterator[tuple[str, mx.array]]:
    """Yield the tensors of some pages or snapshots by name; none if there are no numbers.

    Args:
        name: the name of the tensor of block hashes.
        numbers: the number of each page or slot by block hash.
        arrays: the arrays of all pages or slots.
    """
    if not numbers:
        return
    index = mx.array(list(numbers.values()), dtype=mx.int32)
    yield name, mx.array([list(block_hash) for block_hash in numbers], dtype=mx.uint8)
    for each, array in arrays.items():
        yield each, array[index]


def _shapes(
    name: str, arrays: Mapping[str, mx.array], tensors: Mapping[str, mx.array]
) -> dict[str, tuple[tuple[int, ...], mx.Dtype]]:
    """Return the expected shape and dtype of the tensors that `_rows` makes."""
    count = len(tensors.get(name, ()))
    shapes = {each: ((count, *a.shape[1:]), a.dtype) for each, a in arrays.items()}
    return shapes | {name: ((count, HASH_BYTES), mx.uint8)}


def _hashes(rows: mx.array) -> list[bytes]:
    """Return the block hashes of a tensor of a file."""
    return [bytes(row) for row in int_rows(rows)]


def _write(
    arrays: Mapping[str, mx.array], numbers: Sequence[int], rows: dict[str, mx.array]
) -> None:
    """Replace the pages or slots with these numbers by rows of a file, which are used up."""
    # A new engine allocates pages in order, and MLX writes a slice many times as fast.
    in_order = range(numbers[0], numbers[0] + len(numbers))
    is_slice = list(numbers) == list(in_order)
    index = slice(in_order.start, in_order.stop) if is_slice else mx.array(list(numbers))
    for name, array in arrays.items():
        array[index] = rows.pop(name)
        mx.eval(array)  # reads the rows of one array at a time


def make_prefix_store(
    model: LanguageModel,
    settings: EngineSettings,
    block_manager: BlockManager,
    snapshots: SnapshotStore | None,
    caches: Sequence[PooledCache],
) -> PrefixStore:
    """Make the store of an engine. Its identity is that of the model and of the page format.

    Raises:
        ValueError: if several ranks share the model.
    """
    if model.num_ranks > 1:
        raise ValueError(
            "prefix_cache_path: expected no file with several ranks, whose pages one file cannot "
            f"hold, got {model.num_ranks} ranks: leave it out, and do not call save_prefixes"
        )
    identity = f"{model_fingerprint(model)} {settings.page_size} {settings.kv_bits}"
    return PrefixStore(block_manager, snapshots, caches, identity)


def model_fingerprint(model: LanguageModel) -> str:
    """Return a hash of the config of a model, of its dtype, backend and all bytes of its weights.

    Backends round differently, so that a page of one is not a page of another. A checksum of 32
    bits stands for each chunk of a weight: it detects any training or edit, but not a change that
    was made to have the same checksum. One thread reads about 1 GB/s.
    """
    digest = blake2b(digest_size=16)
    digest.update(repr((model.config, model.dtype, model.ops.name)).encode())
    with ThreadPoolExecutor(thread_name_prefix="fingerprint") as threads:
        for weight in model.weights():
            if isinstance(weight, QuantizedTensor):
                digest.update(repr((weight.bits, weight.group_size, weight.mode)).encode())
            for array in weight.arrays if isinstance(weight, QuantizedTensor) else (weight,):
                data = array_bytes(array)
                chunks = (data[i : i + _CHUNK_BYTES] for i in range(0, len(data), _CHUNK_BYTES))
                sums = list(threads.map(zlib.crc32, chunks))  # crc32 releases the GIL
                digest.update(repr((array.shape, array.dtype, sums)).encode())
    return digest.hexdigest()
