"""The atomic replacement of a file, which leaves no temporary files of killed processes behind."""

import fcntl
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path


@contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """Yield the path of an empty temporary file, which replaces `path` at the end of the context.

    If the context ends with an error, the temporary file is removed.

    Raises:
        OSError: if the folder cannot be made or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    with partial.open("xb") as lock:
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield partial
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def remove_leftovers(path: Path) -> None:
    """Remove the temporary files for `path` of processes that were killed.

    The file of a running process stays, because the process holds a lock on it. The system frees
    the lock when the process ends in any way. On a file system without locks all files stay.
    """
    for partial in path.parent.glob(f".{escape(path.name)}.{'[0-9a-f]' * 8}.partial"):
        with suppress(OSError), partial.open("r+b") as file:  # NFS locks files open for writing
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            partial.unlink()
