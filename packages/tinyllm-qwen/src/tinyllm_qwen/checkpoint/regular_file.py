"""Regular files of a checkpoint's folder, which can be read without waiting.

A link is followed wherever it leads: the Hub's cache is made of links. What may not leave the
folder is a name that a file of the checkpoint gives.
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
    """Return True if there is a file of that name, a broken link or an unreadable file included.

    An optional file that is there and broken is an error, not a file that is absent.
    """
    try:
        return path.is_symlink() or path.exists()
    except OSError:
        return True


def plain_file_size(path: Path) -> int:
    """The size in bytes of a plain file.

    Raises:
        CheckpointError: if it is missing, cannot be looked at, or is a folder, a pipe, a socket
            or a device, which reading might wait for without end.
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
        CheckpointError: as `plain_file_size`, or if the file is larger or cannot be read.
    """
    size = plain_file_size(path)
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise unreadable(path, error) from None
    if len(data) > max_bytes:
        raise CheckpointError(f"{path}: expected at most {max_bytes} bytes, got {size}")
    return data


def unreadable(path: Path, error: OSError) -> CheckpointError:
    """The error for a file that the system does not give."""
    return CheckpointError(f"{path} cannot be read: {error.strerror}")
