"""Records a conversation of `chat` in a pseudo-terminal."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
import tty
from collections.abc import Sequence
from pathlib import Path

PROMPT = "> "

_ROWS = 24
_TIMEOUT = 120.0
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def record(questions: Sequence[str], columns: int) -> list[str]:
    """Return the lines of a conversation with pico at temperature 0.

    stderr is left out: it has the speed, which depends on the machine.

    Args:
        questions: what the user types.
        columns: the width of the terminal.

    Raises:
        TimeoutError: if `chat` does not answer.
    """
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, columns, 0, 0))
    tty.setraw(terminal)  # no echo of its own for keys that arrive before prompt_toolkit reads
    chat = Path(sys.executable).parent / "chat"
    with tempfile.TemporaryDirectory() as state:
        # On a dumb terminal, prompt_toolkit writes no more than the text and a few escapes.
        environment = {**os.environ, "TERM": "dumb", "XDG_STATE_HOME": state}
        process = subprocess.Popen(
            [chat, "--temperature", "0"],
            stdin=terminal,
            stdout=terminal,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        try:
            text = _until_prompt(main)
            for question in questions:
                os.write(main, f"{question}\r".encode())
                text += _until_prompt(main)
        finally:
            process.kill()
            process.wait()
            os.close(terminal)
            os.close(main)
    lines = text.removesuffix(PROMPT).replace("\r", "").split("\n")
    return [line.rstrip() for line in lines if line]


def _until_prompt(main: int) -> str:
    """Return what the program writes until it asks for the next question."""
    text, deadline = "", time.monotonic() + _TIMEOUT
    while True:
        ready, _, _ = select.select([main], [], [], max(0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(f"chat: expected a prompt after {_TIMEOUT:.0f} s, got {text!r}")
        text += os.read(main, 1 << 16).decode()
        plain = _ESCAPE.sub("", text)
        if plain == PROMPT or plain.endswith("\n" + PROMPT):
            return plain
