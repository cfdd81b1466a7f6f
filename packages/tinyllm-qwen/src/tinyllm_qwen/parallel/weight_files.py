"""The check that all ranks load the same weights, to the last byte."""

import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from threading import Event
from typing import cast

import mlx.core as mx
from tinyllm_layers import Communicator

from tinyllm_qwen.checkpoint.regular_file import unreadable
from tinyllm_qwen.checkpoint.shards import find_shards
from tinyllm_qwen.checkpoint.tensor_reader import Progress
from tinyllm_qwen.parallel.rendezvous import agree

_DIGEST_BYTES = 16
_CHUNK_BYTES = 1 << 23
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@contextmanager
def comparison(ranks: Communicator, folder: Path) -> Iterator["WeightComparison"]:
    """Compare the weight files of all ranks while the context loads the model.

    Ranks on one machine that read the same files need no comparison. Otherwise one rank for each
    copy of the files reads all of it, in a thread.

    Args:
        ranks: all ranks; each has to enter the context.
        folder: the checkpoint of this rank.

    Raises:
        CheckpointError: if the folder has no weights.
    """
    files = find_shards(folder)
    identities = _exchanged(ranks, _identity(files))
    # Ranks with the same identity read the same files: the first of them reads for all.
    readers = [identities.index(identity) for identity in identities]
    work = WeightComparison(ranks, files, readers)
    with ThreadPoolExecutor(1, "weight digest") as executor:
        if max(readers) > 0 and readers[ranks.rank] == ranks.rank:
            work.digests = executor.submit(work.read)
        try:
            yield work
        finally:
            work.cancelled.set()


@dataclass
class WeightComparison:
    """A comparison in progress.

    Attributes:
        ranks: all ranks.
        files: the weight files of this rank.
        readers: for each rank the rank that reads its files.
        digests: the digest of each file, in progress; None if another rank reads the same files.
        cancelled: set to end the reading thread.
        bytes_read: bytes of the files read so far.
    """

    ranks: Communicator
    files: Sequence[Path]
    readers: Sequence[int]
    digests: Future[list[bytes]] | None = None
    cancelled: Event = field(default_factory=Event)
    bytes_read: int = 0

    def finish(self, progress: Progress | None = None) -> None:
        """Wait for the digests of all ranks and compare them.

        Args:
            progress: a callback with the bytes read so far and in all while this rank reads.

        Raises:
            CheckpointError: if a file cannot be read.
            ValueError: on every rank, naming the file, if two ranks have different bytes.
        """
        if not any(self.readers):
            return
        names = [file.name for file in self.files]
        digest = blake2b(repr(names).encode(), digest_size=6).hexdigest()
        agree(self.ranks, f"{len(names)} weight files ({names[0]}, names {digest})")
        digests = [bytes(_DIGEST_BYTES) for _ in names]
        if self.digests is not None:
            total = sum(file.stat().st_size for file in self.files)
            while progress is not None and not self.digests.done():
                progress(self.bytes_read, total)
                time.sleep(0.05)
            digests = self.digests.result()
        found = _exchanged(self.ranks, b"".join(digests))
        for rank, reader in enumerate(self.readers):
            for at, name in enumerate(names):
                part = slice(at * _DIGEST_BYTES, (at + 1) * _DIGEST_BYTES)
                if found[reader][part] != found[0][part]:
                    raise ValueError(
                        f"{name}: ranks 0 and {rank} have different bytes in this file (blake2b "
                        f"{found[0][part].hex()} and {found[reader][part].hex()}): start all "
                        "ranks with the same files"
                    )

    def read(self) -> list[bytes]:
        """Read all files and return the digest of each.

        Raises:
            CheckpointError: if a file cannot be read.
        """
        room = bytearray(_CHUNK_BYTES)
        digests = []
        for path in self.files:
            digest = blake2b(digest_size=_DIGEST_BYTES)
            try:
                with path.open("rb", buffering=0) as file:
                    while (count := file.readinto(room)) and not self.cancelled.is_set():
                        digest.update(memoryview(room)[:count])
                        self.bytes_read += count
            except OSError as error:
                raise unreadable(path, error) from error
            digests.append(digest.digest())
        return digests


def _identity(files: Sequence[Path]) -> bytes:
    """Return a digest of the machine and of the files' places on its disks, not of their bytes."""
    digest = blake2b(_machine().encode(), digest_size=_DIGEST_BYTES)
    for path in files:
        try:
            status = path.stat()
        except OSError as error:
            raise unreadable(path, error) from error
        place = (path.name, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        digest.update(repr(place).encode())
    return digest.digest()


def _machine() -> str:
    """Return a text unique to this machine: the id of the boot, or name and network address."""
    try:
        return _BOOT_ID.read_text()
    except OSError:  # only Linux has it
        return f"{socket.gethostname()} {uuid.getnode()}"


def _exchanged(ranks: Communicator, data: bytes) -> list[bytes]:
    """Return the data of all ranks by rank. The data must be equally long."""
    rows = ranks.all_gather(mx.array(list(data), dtype=mx.int32))
    return [bytes(cast(list[int], row.tolist())) for row in rows]
