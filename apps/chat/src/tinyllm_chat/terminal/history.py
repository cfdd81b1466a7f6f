"""The history of inputs, kept in a file."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from tinyllm_chat.terminal.prompt import MAX_SHOWN_PASTE, has_placeholder


def history_path(environ: Mapping[str, str]) -> Path:
    """Return the path of the history, below XDG_STATE_HOME (by default ~/.local/state).

    Raises:
        RuntimeError: if the home folder is unknown.
    """
    state = environ.get("XDG_STATE_HOME", "")
    # The XDG base directory specification says that relative paths are ignored.
    folder = Path(state) if Path(state).is_absolute() else Path("~/.local/state").expanduser()
    return folder / "tinyllm" / "chat_history"


def open_history(environ: Mapping[str, str], warn: Callable[[str], None]) -> History:
    """Open the history of the user, or a new one in memory if the home folder is unknown.

    Args:
        environ: the environment of the process.
        warn: called once, with the reason, if the history cannot be read or stored.
    """
    try:
        return InputHistory(history_path(environ), warn)
    except RuntimeError as error:
        warn(f"the input history is not stored: {error}")
        return InMemoryHistory()


class InputHistory(FileHistory):
    """A history file that only its user can read.

    If reading or writing the file fails, the user gets one notice and the history is switched off.

    Inputs with pastes of more than 10,000 characters are not stored.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        """Open the history. The file is created if it is missing.

        Args:
            path: the path of the file.
            warn: called once, with the reason, if the history cannot be read or stored.
        """
        super().__init__(str(path))
        self._path = path
        self._warn = warn
        self._enabled = True
        self._try(self._create)

    def load_history_strings(self) -> Iterable[str]:
        """Return earlier inputs, the latest first."""
        try:
            return list(super().load_history_strings())
        except OSError as error:
            self._disable(error)
            return []

    def store_string(self, string: str) -> None:
        """Store an input."""
        if len(string) <= MAX_SHOWN_PASTE and not has_placeholder(string):
            # Typed bytes that are not UTF-8 arrive as lone surrogates, which cannot be encoded.
            text = string.encode("utf-8", "replace").decode()
            self._try(lambda: super(InputHistory, self).store_string(text))

    def _create(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))

    def _try(self, action: Callable[[], None]) -> None:
        if self._enabled:
            try:
                action()
            except OSError as error:
                self._disable(error)

    def _disable(self, error: OSError) -> None:
        self._enabled = False
        self._warn(f"the input history is not stored: {self._path}: {error.strerror}")
