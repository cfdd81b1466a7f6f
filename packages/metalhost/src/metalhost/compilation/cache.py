"""Cache of build results on disk. The name of a file is the hash of the inputs of its build."""

import functools
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MAX_DAYS = 30
MAX_BYTES = 1 << 30  # more than 5,000 programs
_MIN_SECONDS = 3600  # a file used within this time may be about to run, and is never removed


def folder() -> Path:
    """Return METALHOST_CACHE, or `metalhost` in the user's cache folder."""
    chosen = os.environ.get("METALHOST_CACHE")
    if chosen:
        return Path(chosen)
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "metalhost"


def key(*parts: str) -> str:
    """Return the hash of the inputs of a build."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode())
        digest.update(part.encode())
    return digest.hexdigest()[:32]


def get_or_build(name: str, build: Callable[[Path], Path]) -> Path:
    """Return the cached file of this name, and build it first if it is missing.

    Several processes may build the same file at the same time. Each process moves its complete
    file into the cache, and the last one stays.

    Args:
        name: name of the file.
        build: takes an empty folder, and returns the path of the built file in this folder.
    """
    path = folder() / name
    with suppress(FileNotFoundError):
        os.utime(path)  # marks the file as used
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    _evict(path.parent)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="making-") as scratch:
        build(Path(scratch)).replace(path)
    return path


@functools.cache  # once per process
def _evict(cache: Path) -> None:
    """Remove files not used for MAX_DAYS, and the least recently used files beyond MAX_BYTES."""
    now, total = time.time(), 0
    entries = []
    for entry in os.scandir(cache):
        try:
            state = entry.stat()
        except FileNotFoundError:
            continue  # another process has removed it
        entries.append((state.st_mtime, state.st_size, Path(entry.path)))
    for used, size, path in sorted(entries, reverse=True):
        total += size
        age = now - used
        if age < _MIN_SECONDS or (age < MAX_DAYS * 86400 and total <= MAX_BYTES):
            continue
        if path.is_dir():  # left behind by a process that was killed during a build
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
