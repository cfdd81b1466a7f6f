"""Compiled programs, kept from one run to the next, each under the hash of what it is made from."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

KEPT_DAYS = 30


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
    if place.exists():
        os.utime(place)
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="making-") as scratch:
        make(Path(scratch)).replace(place)
    _forget_old(place.parent)
    return place


def _forget_old(cache: Path) -> None:
    """Remove what was not used for a month, so that the folder does not grow for ever."""
    oldest = time.time() - KEPT_DAYS * 86400
    for entry in os.scandir(cache):
        try:
            if entry.stat().st_mtime >= oldest:
                continue
            if entry.is_dir():
                shutil.rmtree(entry.path)  # of a process that was killed
            else:
                Path(entry.path).unlink()
        except FileNotFoundError:
            continue  # another process was first
