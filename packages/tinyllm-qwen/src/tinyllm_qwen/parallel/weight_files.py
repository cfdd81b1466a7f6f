"""The check that the weight files of all ranks have the same bytes."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from threading import Event

from tinyllm_layers import Communicator

from tinyllm_qwen.checkpoint.shards import find_shards
from tinyllm_qwen.checkpoint.tensor_reader import Progress
from tinyllm_qwen.parallel.rendezvous import agree
from tinyllm_qwen.partition.local_ranks import exchanged, machine_name
from tinyllm_qwen.regular_file import unreadable

_DIGEST_BYTES = 16
_CHUNK_BYTES = 1 << 23


@contextmanager
def comparison(ranks: Communicator, folder: Path) -> Iterator["WeightComparison"]:
    """Compare the weight files of all ranks, while the body of the context loads the model.

    Ranks on one machine that read the same files need no comparison. If there are several copies of
    the files, one rank for each copy reads the whole copy, in a thread.

    Args:
        ranks: all ranks. Each rank must enter the context.
        folder: the checkpoint of this rank.

    Raises:
        CheckpointError: if the folder has no weights.
    """
    files = find_shards(folder)
    identities = exchanged(ranks, _identity(files))
    # Ranks with the same identity read the same files. The first rank of each identity reads them.
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
        readers: for each rank, the number of the rank that reads its files.
        digests: the digests of the files, which a thread computes; None if this rank does not read.
        cancelled: an event that ends the reading thread.
        bytes_read: the number of bytes read so far.
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
            progress: a callback with the number of bytes read so far, and of all bytes. It is
                called while this rank still reads.

        Raises:
            CheckpointError: if a file cannot be read.
            ValueError: on every rank, if two ranks have different bytes. The message names the
                file.
        """
        if not any(self.readers):
            return
        names = [file.name for file in self.files]
        digest = blake2b(repr(names).encode(), digest_size=6).hexdigest()
        agree(self.ranks, f"{len(names)} weight files ({names[0]}, names {digest})")
        digests = [bytes(_DIGEST_BYTES) for _ in names]  # not compared if this rank does not read
        if self.digests is not None:
            total = sum(file.stat().st_size for file in self.files)
            while progress is not None and not self.digests.done():
                progress(self.bytes_read, total)
                time.sleep(0.05)  # report progress 20 times a second
            digests = self.digests.result()
        found = exchanged(self.ranks, b"".join(digests))
        for rank, reader in enumerate(self.readers):
            for at, name in enumerate(names):
                span = slice(at * _DIGEST_BYTES, (at + 1) * _DIGEST_BYTES)
                if found[reader][span] != found[0][span]:
                    raise ValueError(
                        f"{name}: ranks 0 and {rank} have different bytes in this file (blake2b "
                        f"{found[0][span].hex()} and {found[reader][span].hex()}): start all "
                        "ranks with the same files"
                    )

    def read(self) -> list[bytes]:
        """Read all files and return the digest of each.

        Raises:
            CheckpointError: if a file cannot be read.
        """
        buffer = bytearray(_CHUNK_BYTES)
        digests = []
        for path in self.files:
            digest = blake2b(digest_size=_DIGEST_BYTES)
            try:
                with path.open("rb", buffering=0) as file:
                    while (count := file.readinto(buffer)) and not self.cancelled.is_set():
                        digest.update(memoryview(buffer)[:count])
                        self.bytes_read += count
            except OSError as error:
                raise unreadable(path, error) from error
            digests.append(digest.digest())
        return digests


def _identity(files: Sequence[Path]) -> bytes:
    """Return a digest of the machine, and of names, inodes, sizes and times of the files.

    The bytes of the files are not read.
    """
    digest = blake2b(machine_name().encode(), digest_size=_DIGEST_BYTES)
    for path in files:
        try:
            status = path.stat()
        except OSError as error:
            raise unreadable(path, error) from error
        identity = (path.name, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        digest.update(repr(identity).encode())
    return digest.digest()
