"""Signals that end a process, as events of the event loop."""

import asyncio
import contextlib
import signal
import socket
from types import FrameType, TracebackType

ENDING = [signal.SIGTERM, signal.SIGINT]
"""Signals that ask for the end: of a service manager, and of Ctrl-C."""

OF_TERMINAL = [signal.SIGQUIT, signal.SIGHUP]
"""Signals that also ask for it, unless `nohup` or the like ignores them."""

IGNORED = [signal.SIGUSR1, signal.SIGUSR2]
"""Signals that would end the process by default. Programs that rotate logs send them."""


class Signals:
    """Signals that ask for the end since this context was entered.

    asyncio's own handlers pass a signal through the pipe that also wakes the loop for calls of
    other threads. While the loop is stalled, some 300 steps of the engine fill that pipe, and a
    signal is then lost. Here Python counts the signals, and a pipe of its own wakes the loop. If
    that pipe is full, the loop wakes anyway.

    Attributes:
        first: set by the first signal, which asks for a graceful shutdown.
        second: set by the second signal, which asks to end at once.
    """

    def __init__(self) -> None:
        """Prepare to count."""
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self._count = 0
        self._reader, self._writer = socket.socketpair()

    def __enter__(self) -> "Signals":
        """Handle the signals. The running event loop must be that of the main thread."""
        for end in (self._reader, self._writer):
            end.setblocking(False)
        asyncio.get_running_loop().add_reader(self._reader, self._set_events)
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        heeded = [each for each in OF_TERMINAL if signal.getsignal(each) != signal.SIG_IGN]
        self._before = {each: signal.signal(each, self._handle) for each in ENDING + heeded}
        self._before |= {each: signal.signal(each, signal.SIG_IGN) for each in IGNORED}
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Restore the handlers from before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        asyncio.get_running_loop().remove_reader(self._reader)
        self._reader.close()
        self._writer.close()

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        """Count a signal. Python calls this between two instructions of the main thread."""
        self._count += 1

    def _set_events(self) -> None:
        """Set the events. The loop calls this once Python has written to the pipe."""
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(4096)
        if self._count >= 1:
            self.first.set()
        if self._count >= 2:
            self.second.set()
