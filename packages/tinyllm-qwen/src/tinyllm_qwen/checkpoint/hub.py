"""Resolution of a model name: a folder, the built-in model, or a repository on the Hub."""

import re
from pathlib import Path

from tinyllm_qwen.checkpoint.download import fetch
from tinyllm_qwen.errors import CheckpointError
from tinyllm_qwen.regular_file import exists

BUILT_IN = "pico"

_BUILT_IN_FOLDER = Path(__file__).parents[1] / "pico"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def resolve(path_or_repo: str | Path, revision: str | None = None) -> Path:
    """Return the local folder of a checkpoint. A checkpoint on the Hub is downloaded first.

    An existing folder takes precedence over the built-in model "pico", and "pico" over owner/name
    on the Hub. A folder named "pico" takes precedence over the built-in model only if it holds a
    config.json. "./pico" always means the folder. Downloads use `huggingface_hub`, with its cache,
    its progress bars and its environment variables (HF_HOME, HF_ENDPOINT, HF_TOKEN,
    HF_HUB_OFFLINE).

    Args:
        path_or_repo: a path, "pico" or owner/name.
        revision: the branch, tag or commit of a repository. A folder has no revision.

    Raises:
        CheckpointError: if `path_or_repo` is neither a folder nor a name, or if a folder is given
            with a revision.
        HubError: if a repository cannot be fetched. The message has the reason and a remedy.
    """
    folder = resolve_local(path_or_repo, revision)
    if folder is None:
        return fetch(str(path_or_repo), revision)
    return folder


def resolve_local(path_or_repo: str | Path, revision: str | None = None) -> Path | None:
    """Return the local folder of a checkpoint, or None for the name of a repository on the Hub.

    The arguments are those of `resolve`. Nothing is downloaded.

    Raises:
        CheckpointError: as in `resolve`.
    """
    if path_or_repo != BUILT_IN or (Path(BUILT_IN) / "config.json").is_file():
        folder = _existing(path_or_repo)
    else:
        folder = _BUILT_IN_FOLDER
        if not folder.is_dir():
            raise CheckpointError(
                f"the built-in model is missing from this installation ({folder}): reinstall "
                "tinyllm-qwen, or name another model"
            )
    if folder is not None:
        if revision is not None:
            raise CheckpointError(
                f"revision: {revision!r} was asked of {folder}, but only repositories on the Hub "
                "have revisions: leave it out"
            )
        return folder
    if isinstance(path_or_repo, str) and _REPOSITORY.fullmatch(path_or_repo):
        return None
    raise CheckpointError(
        f"{str(path_or_repo)[:200]!r} is neither a folder here nor the name of a repository "
        f"(owner/name, such as Qwen/Qwen3-0.6B); {BUILT_IN!r} is the built-in model"
    )


def _existing(path: str | Path) -> Path | None:
    """Return the folder at `path`, or None if the path does not exist; refuse a file."""
    if path == "":  # usually an unset variable, but pathlib would return the current folder
        return None
    try:
        folder = Path(path).expanduser()
        is_present = exists(folder)
    except (OSError, RuntimeError) as error:  # the name is too long, or ~user is unknown
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(
            f"{str(path)[:200]!r} cannot be a folder ({reason}): check the name of the model"
        ) from error
    if is_present and not folder.is_dir():
        if folder.suffix == ".gguf":
            raise CheckpointError(
                f"{folder} is a GGUF file, which cannot be read: name the folder or the repository "
                "of a checkpoint in MLX's or Hugging Face's format (safetensors)"
            )
        raise CheckpointError(
            f"{folder} is a file: name the folder that holds it and config.json, "
            f"{folder.absolute().parent}"
        )
    return folder if is_present else None
