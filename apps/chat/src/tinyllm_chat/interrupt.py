"""Ctrl-C, taken between two steps."""

import signal
import threading
from types import FrameType, TracebackType


class Interrupt:
    """While it is entered, Ctrl-C is noted; a second one raises KeyboardInterrupt at once.

    An exception out of nowhere could leave one block's cache a token ahead of another's.

    Attributes:
        requested: whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        """Make one that does nothing yet."""
        self.requested = False
        self._main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "Interrupt":
        """Take over Ctrl-C; outside the main thread, where there is none, do nothing."""
        if self._main:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _where: TracebackType | None,
    ) -> None:
        """Give it back."""
        if self._main:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
