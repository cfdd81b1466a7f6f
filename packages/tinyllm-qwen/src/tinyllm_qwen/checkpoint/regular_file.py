"""Regular files of a checkpoint's folder. Reading them never blocks.

Links are followed to any place, because the Hub's cache consists of links. Names that a file of the
checkpoint gives must stay inside the folder.
"""

import stat
from pathlib import Path

from tinyllm_qwen.errors import CheckpointError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def exists_or_broken_link(path: Path) -> bool:
    """Return True if `path` is in use, by a broken link or an unreadable file too.

    An optional file that is broken is an error. It must not count as absent.
    """
    try:
        return path.is_symlink() or path.exists()
    except OSError:
        return True


def regular_file_size(path: Path) -> int:
    """Return the size of a regular file in bytes.

    Raises:
        CheckpointError: if the file is missing or inaccessible, or is a folder, a pipe, a socket
            or a device, on which reading might block forever.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        reason = "leads nowhere" if path.is_symlink() else "is missing"
        raise CheckpointError(
            f"{path} {reason}: is {path.parent} the folder of a checkpoint, downloaded whole?"
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise CheckpointError(f"{path}: expected a file, found {kind}: download it again")
    return status.st_size


def read_regular_file(path: Path, max_bytes: int) -> bytes:
    """Read a whole file of at most `max_bytes`.

    Raises:
        CheckpointError: as `regular_file_size`, or if the file is larger or cannot be read.
    """
    size = regular_file_size(path)
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise unreadable(path, error) from None
    if len(data) > max_bytes:
        raise CheckpointError(f"{path}: expected at most {max_bytes} bytes, got {size}")
    return data


def unreadable(path: Path, error: OSError) -> CheckpointError:
    """Return the error for a file that the system refuses to read."""
    return CheckpointError(f"{path} cannot be read: {error.strerror}")
