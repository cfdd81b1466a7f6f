"""Compiled programs, kept from one run to the next, each under the hash of what it is made from."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

KEPT_DAYS = 30
KEPT_BYTES = 1 << 30  # 5,000 programs and more
_IN_USE = 3600  # seconds for which nothing is removed: a process may be about to run it


def folder() -> Path:
    """METALHOST_CACHE, or `metalhost` in the user's cache folder."""
    chosen = os.environ.get("METALHOST_CACHE")
    if chosen:
        return Path(chosen)
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "metalhost"


def key(*parts: str) -> str:
    """A name for what is made from these parts and nothing else."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode())
        digest.update(part.encode())
    return digest.hexdigest()[:32]


def cached(name: str, make: Callable[[Path], Path]) -> Path:
    """The file of that name, made if it is not there.

    `make` gets an empty folder and gives the path of a file in it. Several processes may make the
    same one at the same time: each renames a whole file to its place, and the last one stays.
    """
    place = folder() / name
    with suppress(FileNotFoundError):
        os.utime(place)
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    _forget_old(place.parent)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="making-") as scratch:
        make(Path(scratch)).replace(place)
    return place


@functools.cache  # once for a process
def _forget_old(cache: Path) -> None:
    """Remove what was not used for a month, and then what was used longest ago, if it is much."""
    now, kept = time.time(), 0
    found = []
    for entry in os.scandir(cache):
        try:
            state = entry.stat()
        except FileNotFoundError:
            continue  # another process was first
        found.append((state.st_mtime, state.st_size, Path(entry.path)))
    for used, size, path in sorted(found, reverse=True):
        kept += size
        if now - used < _IN_USE or (now - used < KEPT_DAYS * 86400 and kept <= KEPT_BYTES):
            continue
        if path.is_dir():  # of a process that was killed
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
