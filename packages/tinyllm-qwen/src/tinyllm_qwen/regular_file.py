"""Access to regular files of a checkpoint, without the risk of blocking.

Symbolic links are followed out of the folder, because the Hub's cache consists of links. This
module does not check names: names from an index must be checked first (`checkpoint/shards.py`).
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


def exists(path: Path) -> bool:
    """Return True if `path` exists; a broken link does not.

    `Path.exists` is also False for all errors, from Python 3.14 on.

    Raises:
        OSError: if the system cannot tell, for example for lack of a permission.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a null character
        return False
    return True


def exists_or_broken_link(path: Path) -> bool:
    """Return True if `path` exists, or is a broken link, or cannot be accessed.

    A broken optional file must lead to an error, so it must not count as absent.
    """
    try:
        return path.is_symlink() or exists(path)
    except OSError:
        return True


def regular_file_size(path: Path) -> int:
    """Return the size of a regular file in bytes.

    Raises:
        CheckpointError: if the file is missing or inaccessible. Folders, pipes, sockets and devices
            are refused too, because reading them might block forever.
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
        CheckpointError: as in `regular_file_size`, or if the file is larger or cannot be read.
    """
    size = regular_file_size(path)
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise unreadable(path, error) from None
    if len(data) > max_bytes:
        raise CheckpointError(
            f"{path}: expected at most {max_bytes} bytes, got {size}: take the file of the "
            "original model"
        )
    return data


def unreadable(path: Path, error: OSError) -> CheckpointError:
    """Return the error for a file that the operating system cannot read."""
    return CheckpointError(f"{path} cannot be read: {error.strerror}: check the file")
