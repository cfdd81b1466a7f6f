"""The files of a checkpoint that are the same after a conversion."""

from pathlib import Path

from tinyllm_qwen.errors import CheckpointError

# By name: no pickle and no code comes along, whatever else a folder holds.
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
    """The tokenizer, the chat template, the advice for generation and the license."""
    return [folder / name for name in _NAMES if (folder / name).is_file()]


def copy(file: Path, folder: Path) -> None:
    """Copy what a file says, not its permissions, into a folder.

    Raises:
        CheckpointError: if it cannot be read.
        OSError: if the copy cannot be written.
    """
    try:
        data = file.read_bytes()  # a tokenizer has ten megabytes
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    (folder / file.name).write_bytes(data)
