"""The modes of a terminal, such as the echo of keys."""

import sys
import termios
from collections.abc import Callable
from contextlib import suppress


def keep_modes() -> Callable[[], None]:
    """Return a function that restores the present modes of stdin, if stdin is a terminal."""
    if not sys.stdin.isatty():
        return lambda: None
    modes = termios.tcgetattr(sys.stdin)

    def restore() -> None:
        with suppress(termios.error):  # the terminal may be closed
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, modes)

    return restore
