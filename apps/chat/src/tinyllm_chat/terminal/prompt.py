"""The prompt: line editing, and placeholders for long pastes."""

import re
import sys
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer
from prompt_toolkit.history import History
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import Output
from prompt_toolkit.output.defaults import create_output

MAX_SHOWN_PASTE = 10_000
"""Characters above which a paste is not shown: a terminal needs minutes to draw a megabyte."""

_PLACEHOLDER = re.compile(r"\[paste \d+: [\d,]+ characters\]")


class PasteBuffer:
    """The long pastes of a session, each shown as a short placeholder."""

    def __init__(self) -> None:
        """Start without pastes."""
        self._pastes: dict[str, str] = {}

    def shorten(self, text: str) -> str:
        """Return a paste for the input line, or its placeholder if the paste is long."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if len(text) <= MAX_SHOWN_PASTE:
            return text
        placeholder = f"[paste {len(self._pastes) + 1}: {len(text):,} characters]"
        self._pastes[placeholder] = text
        return placeholder

    def expand(self, line: str) -> str:
        """Return the input with each placeholder replaced by its paste."""
        return _PLACEHOLDER.sub(lambda match: self._pastes.get(match[0], match[0]), line)


def has_placeholder(line: str) -> bool:
    """Return True if an input seems to contain a placeholder, which no other session can expand."""
    return _PLACEHOLDER.search(line) is not None


class PromptReader:
    """Reads the inputs of a user. A paste of many lines is one input."""

    def __init__(
        self,
        history: History,
        completer: Completer,
        source: Input | None = None,
        screen: Output | None = None,
    ) -> None:
        """Prepare the prompt.

        Args:
            history: earlier inputs.
            completer: the completion of the Tab key.
            source: the source of keys; by default the terminal.
            screen: the output of the prompt; by default the terminal, even if stdout is a file.
        """
        self._pastes = PasteBuffer()
        self._prompt: PromptSession[str] = PromptSession(
            "> ",
            multiline=True,  # for pastes of many lines; `_key_bindings` lets Enter send
            prompt_continuation=lambda _width, _line, _wraps: "  ",
            key_bindings=_key_bindings(self._pastes),
            completer=completer,
            complete_while_typing=False,
            enable_suspend=True,
            history=history,
            input=source,
            output=screen or _terminal_output(),
        )

    def read(self) -> str:
        """Return the next input.

        Raises:
            EOFError: on Ctrl-D.
            KeyboardInterrupt: on Ctrl-C.
        """
        typed = self._pastes.expand(self._prompt.prompt())
        # Bytes that are not UTF-8 arrive as lone surrogates, which no tokenizer accepts.
        return typed.encode("utf-8", "replace").decode()


def _terminal_output() -> Output | None:
    """Return stderr's terminal if stdout is a file, or None for prompt_toolkit's own choice.

    prompt_toolkit handles TERM=dumb only if it chooses the output itself. If stderr is a file too,
    the prompt goes to the terminal of the process.
    """
    if sys.stdout.isatty():
        return None
    if sys.stderr.isatty():
        return create_output(always_prefer_tty=True)
    try:
        return create_output(stdout=Path("/dev/tty").open("w"))
    except OSError:  # the process has no terminal of its own
        return create_output(always_prefer_tty=True)


def _key_bindings(pastes: PasteBuffer) -> KeyBindings:
    """Let Enter send, and Esc Enter (Alt+Enter sends the same keys) begin a new line."""
    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add(Keys.BracketedPaste)
    def _paste(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text(pastes.shorten(event.data))

    # prompt_toolkit takes a color code, as in the text of a log, for a mouse event, and its handler
    # of these raises. The prompt uses no mouse.
    @keys.add(Keys.Vt100MouseEvent)
    def _ignore(_event: KeyPressEvent) -> None:
        pass

    return keys
