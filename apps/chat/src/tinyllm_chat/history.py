"""What was typed, kept from one run to the next."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from prompt_toolkit.history import FileHistory

from tinyllm_chat.pastes import LONGEST, has_mark


def history_path(environ: Mapping[str, str]) -> Path:
    """The history's file: below XDG_STATE_HOME, which is ~/.local/state unless it is set."""
    state = environ.get("XDG_STATE_HOME", "")
    # The XDG base directory specification has relative paths ignored.
    folder = Path(state) if Path(state).is_absolute() else Path("~/.local/state").expanduser()
    return folder / "tinyllm" / "chat_history"


class SafeHistory(FileHistory):
    """A history that only its user can read, and whose failures are told once and never fatal.

    Pastes of more than 10,000 characters are not kept.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        """Open the history, made if it is missing.

        Args:
            path: of its file.
            warn: told why the history is not kept.
        """
        super().__init__(str(path))
        self._path = path
        self._warn = warn
        self._works = True
        self._try(self._create)

    def load_history_strings(self) -> Iterable[str]:
        """What was typed before, the latest first."""
        try:
            return list(super().load_history_strings())
        except OSError as error:
            self._fail(error)
            return []

    def store_string(self, string: str) -> None:
        """Keep an input."""
        if len(string) <= LONGEST and not has_mark(string):
            # A terminal may send what is not UTF-8, which arrives as lone surrogates.
            text = string.encode("utf-8", "replace").decode()
            self._try(lambda: super(SafeHistory, self).store_string(text))

    def _create(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))

    def _try(self, action: Callable[[], None]) -> None:
        if self._works:
            try:
                action()
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._works = False
        self._warn(f"the input history is not kept: {self._path}: {error.strerror}")
