"""A folder that is written under a temporary name, and renamed once it is complete."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tinyllm_qwen.errors import ConversionError
from tinyllm_qwen.regular_file import exists

PREFIX = ".tinyllm-partial-"


def check_target(target: Path) -> Path:
    """Return the absolute path of a new folder. Only an empty folder may exist at the path.

    Raises:
        ConversionError: if the path exists and is not an empty folder, or is in use.
    """
    try:
        is_link, path = target.expanduser().is_symlink(), target.expanduser().resolve()
        is_present = exists(path)
        if not is_link and (not is_present or (path.is_dir() and not any(path.iterdir()))):
            # A rename cannot replace a mount point. Replacing the current folder would leave the
            # shell in a deleted folder.
            if is_present and (path.is_mount() or path == Path.cwd()):
                raise ConversionError(f"{path} is in use: name a new folder inside it")
            return path
    except (OSError, RuntimeError) as error:  # name too long, no permission, unknown ~user
        if isinstance(error, ConversionError):
            raise
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConversionError(
            f"{str(target)[:200]!r} cannot be a folder ({reason}): name another"
        ) from error
    raise ConversionError(f"{target} exists already: name a new folder, or remove it first")


def free_bytes(target: Path) -> int:
    """Return the free bytes of the disk that holds `target`. The folder need not exist yet."""
    present = next(path for path in (target, *target.parents) if path.exists())
    return shutil.disk_usage(present).free


@contextmanager
def partial_folder(target: Path) -> Iterator[Path]:
    """Yield a hidden folder in the parent of `target`, for the caller to write into.

    At the end of the block, all files are synced to disk, and the folder is renamed to `target`
    atomically. After an exception, Ctrl-C included, the folder is removed, and the folders above it
    that were made for it.

    Args:
        target: the result of `check_target`.

    Raises:
        ConversionError: if the folder cannot be written, or another program has made `target`.
    """
    try:
        made = [folder for folder in target.parents if not folder.exists()]
        partial = target.parent / f"{PREFIX}{secrets.token_hex(4)}"
        try:
            partial.mkdir(parents=True)
            yield partial
            for file in partial.iterdir():
                _sync(file)
            _sync(partial)
            partial.rename(target)
        except BaseException:
            try:
                shutil.rmtree(partial, ignore_errors=True)
            finally:  # a second Ctrl-C may have interrupted the first attempt
                shutil.rmtree(partial, ignore_errors=True)
            for folder in made:
                with suppress(OSError):  # another program uses it
                    folder.rmdir()
            raise
        _sync(target.parent)
    except OSError as error:
        raise ConversionError(_explain(error, target)) from error


def _sync(path: Path) -> None:
    """Sync a file, or the directory entries of a folder, to disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: the file system cannot sync folders
            raise
    finally:
        os.close(number)


def _explain(error: OSError, target: Path) -> str:
    """Return the message for an error of the file system, with a remedy."""
    if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and target.exists():
        return f"{target} was made by another program meanwhile: name another folder"
    reason, advice = error.strerror or str(error), "name a folder that can be written"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        advice = "free some space, or name a folder on a larger disk"
    return f"{target} could not be written ({reason}), nothing of it is left: {advice}"
