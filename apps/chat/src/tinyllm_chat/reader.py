"""The prompt: line editing, history and completion."""

import sys

from prompt_toolkit import PromptSession
from prompt_toolkit.history import History
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import Output
from prompt_toolkit.output.defaults import create_output

from tinyllm_chat.completion import CommandCompleter
from tinyllm_chat.pastes import Pastes


class Reader:
    """Reads what a user types, one input at a time; a paste of many lines is one input."""

    def __init__(
        self, history: History, source: Input | None = None, screen: Output | None = None
    ) -> None:
        """Prepare the prompt.

        Args:
            history: earlier inputs.
            source: where keys come from; the terminal, unless told.
            screen: where the prompt is drawn; the terminal, even where stdout is a file.
        """
        self._pastes = Pastes()
        self._prompt: PromptSession[str] = PromptSession(
            "> ",
            multiline=True,  # a paste may have many lines; Enter sends all the same, see below
            prompt_continuation=lambda _width, _line, _wraps: "  ",
            key_bindings=_keys(self._pastes),
            completer=CommandCompleter(),
            complete_while_typing=False,
            history=history,
            input=source,
            output=screen or _screen(),
        )

    def read(self) -> str:
        """The next input.

        Raises:
            EOFError: on Ctrl-D.
            KeyboardInterrupt: on Ctrl-C.
        """
        typed = self._pastes.expand(self._prompt.prompt())
        return typed.encode("utf-8", "replace").decode()  # lone surrogates were not UTF-8


def _screen() -> Output | None:
    """Stderr's terminal where stdout is a file; None is prompt_toolkit's own choice.

    It looks after TERM=dumb only where the choice is its own.
    """
    return None if sys.stdout.isatty() else create_output(always_prefer_tty=True)


def _keys(pastes: Pastes) -> KeyBindings:
    """Enter sends, Esc Enter (which is what Alt+Enter sends) begins a new line."""
    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add(Keys.BracketedPaste)
    def _paste(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text(pastes.take(event.data))

    return keys
