"""Files of saved conversations."""

import json
import os
import stat
import tempfile
from pathlib import Path

from tinyllm_chat.conversation import Conversation, Turn
from tinyllm_chat.errors import ChatError

FORMAT, VERSION = "tinyllm-chat", 1
MAX_BYTES = 100_000_000
"""The maximum size of a file, far beyond any conversation. Larger files are not read."""


def save(path: Path, conversation: Conversation, model: str) -> None:
    """Write a conversation, completely or not at all.

    An existing file is overwritten only if it is a saved conversation.

    Raises:
        ChatError: if an existing file is not a saved conversation, or the file cannot be
            written.
    """
    turns = [
        {"question": turn.question, "answer": turn.answer, "reasoning": turn.reasoning}
        for turn in conversation.turns
    ]
    document = {"format": FORMAT, "version": VERSION, "model": model}
    text = json.dumps(document | {"system": conversation.system, "turns": turns}, indent=2)
    path = _expanded(path)
    if path.exists() and not _is_transcript(path):
        raise ChatError(f"{path} exists and is not a saved conversation: choose another name")
    temporary: str | None = None
    try:
        target = path.resolve()  # so that a symbolic link is kept and its target replaced
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(target)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise ChatError(f"{path} cannot be written: {error.strerror}") from None


def load(path: Path) -> Conversation:
    """Read a conversation that `save` wrote.

    Raises:
        ChatError: if the file cannot be read or is not a saved conversation.
    """
    path = _expanded(path)
    document = _read_json(path)
    if document.get("format") != FORMAT:
        raise ChatError(f"{path} is not a saved conversation: expected a file written by /save")
    if document.get("version") != VERSION:
        raise ChatError(
            f"{path}: expected version {VERSION} of the format, "
            f"got {str(document.get('version'))[:20]}: use the version of chat that wrote it"
        )
    system, turns = document.get("system"), document.get("turns")
    if not isinstance(system, str | None) or not isinstance(turns, list):
        raise ChatError(f"{path}: expected a system message, or null, and a list of turns")
    return Conversation(system, [_turn(turn, f"{path}: turn {i}") for i, turn in enumerate(turns)])


def _turn(value: object, where: str) -> Turn:
    fields = value if isinstance(value, dict) else {}
    parts = [fields.get(name) for name in ("question", "answer", "reasoning")]
    question, answer, reasoning = parts
    if isinstance(question, str) and isinstance(answer, str) and isinstance(reasoning, str):
        return Turn(question, answer, reasoning)
    raise ChatError(f"{where}: expected a question, an answer and reasoning, all strings")


def _read_json(path: Path) -> dict[str, object]:
    try:
        status = path.stat()
        # Reading a pipe or a device might never end.
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise ValueError
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ChatError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ChatError(
            f"{path} is not a saved conversation: expected a JSON file in UTF-8"
        ) from None
    if not isinstance(document, dict):
        raise ChatError(f"{path} is not a saved conversation: expected a file written by /save")
    return document


def _is_transcript(path: Path) -> bool:
    try:
        return _read_json(path).get("format") == FORMAT
    except ChatError:
        return False


def _expanded(path: Path) -> Path:
    """Replace a leading "~" by the home folder."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise ChatError(f"{path}: the home folder is unknown: give the path without ~") from None
