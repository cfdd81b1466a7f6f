"""The files of a checkpoint that a conversion copies unchanged."""

from pathlib import Path

from tinyllm_qwen.errors import CheckpointError

# Only files with these names are copied, so that no pickle and no code is copied.
_NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "LICENSE",
    "LICENSE.md",
    "LICENSE.txt",
    "NOTICE",
)


def files_to_copy(folder: Path) -> list[Path]:
    """List the files of the tokenizer, the chat template, the sampling defaults and the license."""
    return [folder / name for name in _NAMES if (folder / name).is_file()]


def copy(file: Path, folder: Path) -> None:
    """Copy the contents of a file into a folder, without its permissions.

    Raises:
        CheckpointError: if the file cannot be read.
        OSError: if the copy cannot be written.
    """
    try:
        data = file.read_bytes()  # a tokenizer has 10 MB
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    (folder / file.name).write_bytes(data)
