"""Downloads from the Hugging Face Hub.

Import this module only before a download, because `huggingface_hub` is slow to import.
"""

import errno
from fnmatch import fnmatchcase
from pathlib import Path

from huggingface_hub import HfApi, constants, errors, snapshot_download, try_to_load_from_cache

from tinyllm_qwen.checkpoint.partial_folder import free_bytes
from tinyllm_qwen.errors import HubError
from tinyllm_qwen.format_bytes import format_bytes

# Patterns of the files to download: weights, configs, templates, all kinds of tokenizer files, and
# licenses, which `convert` copies.
_FILES = [
    "*.safetensors",
    "*.json",
    "*.jinja",
    "vocab.txt",
    "merges.txt",
    "*.model",
    "LICENSE*",
    "NOTICE",
]


def fetch(repository: str, revision: str | None) -> Path:
    """Return the folder of a repository in the Hub's cache, after downloading missing files.

    Args:
        repository: owner/name.
        revision: the branch, tag or commit; None for the default branch.

    Raises:
        HubError: if the repository cannot be fetched. The message has the reason and a remedy.
    """
    _check_space(repository, revision)
    try:
        folder = snapshot_download(
            repository,
            revision=revision,
            allow_patterns=_FILES,
            # Some versions of the client, such as 1.33, ask the Hub for a commit even offline.
            local_files_only=constants.HF_HUB_OFFLINE,
        )
    # The Hub's client passes on exceptions of its HTTP library, and has replaced that library
    # before. So any exception is taken to mean that the repository could not be fetched.
    except Exception as error:
        raise HubError(_explain(error, repository, revision)) from error
    return Path(folder)


def partial_files(repository: str) -> set[Path]:
    """Return the files of a repository whose download has not ended, or was interrupted."""
    folder = Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"
    return set(folder.glob("blobs/*.incomplete"))


def _check_space(repository: str, revision: str | None) -> None:
    """Raise if the download does not fit on the disk. Skip the check if the sizes are unknown."""
    if constants.HF_HUB_OFFLINE:
        return
    try:
        info = HfApi().model_info(repository, revision=revision, files_metadata=True)
    except Exception:
        # This check is only a precaution. The download will fail with the same error, unless the
        # cache has the files.
        return
    needed = sum(
        file.size or 0
        for file in info.siblings or []
        if any(fnmatchcase(file.rfilename, pattern) for pattern in _FILES)
        and not isinstance(
            try_to_load_from_cache(repository, file.rfilename, revision=info.sha), str
        )
    )
    cache = Path(constants.HF_HUB_CACHE)
    free = free_bytes(cache)
    if needed > free:
        raise HubError(
            f"{repository} needs {format_bytes(needed)}, {cache} has {format_bytes(free)} left: "
            "free some space, or set HF_HOME to a folder on a larger disk"
        )


def _explain(error: Exception, repository: str, revision: str | None) -> str:
    """Return the message for an error of the Hub's client, with a remedy."""
    page = f"{constants.ENDPOINT}/{repository}"
    # Subclasses come first: a GatedRepoError is also a RepositoryNotFoundError.
    match error:
        case errors.GatedRepoError():
            return f"{repository} is gated: accept its license on {page}, then run `hf auth login`"
        case errors.RevisionNotFoundError():
            return f"{repository} has no revision {revision!r}: {page}/tree/main lists those it has"
        case errors.RepositoryNotFoundError() | errors.HFValidationError():
            reason = f"is neither a folder here nor a repository on {constants.ENDPOINT}"
            advice = "check the name; for a private repository run `hf auth login`"
        case errors.LocalEntryNotFoundError() | errors.OfflineModeIsEnabled():
            reason, advice = _unreachable(error)
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            reason = f"does not fit on the disk of {constants.HF_HUB_CACHE}"
            advice = "free some space, or set HF_HOME to a folder on a larger disk"
        case OSError(errno=errno.EACCES | errno.EPERM | errno.EROFS):
            reason = f"cannot be written to the cache ({error})"
            advice = "change the folder's owner, or set HF_HOME to another folder"
        case _:
            reason = f"could not be fetched ({type(error).__name__}: {_first_line(error)})"
            advice = "run it again; complete files are kept"
    return f"{repository} {reason}: {advice}"


def _unreachable(error: Exception) -> tuple[str, str]:
    """Return the reason and a remedy if the Hub is not reached and the cache has no copy."""
    missing = f"is missing or incomplete in the cache ({constants.HF_HUB_CACHE})"
    if constants.HF_HUB_OFFLINE:
        return f"{missing}, and HF_HUB_OFFLINE forbids the download", "unset it, or name a folder"
    cause = _first_line(error.__cause__ or error)
    return (
        f"{missing}, and {constants.ENDPOINT} cannot be reached ({cause})",
        "check the network, or name a folder",
    )


def _first_line(error: BaseException) -> str:
    """Return the first line of an error message, for use in another message."""
    return str(error).strip().partition("\n")[0]
