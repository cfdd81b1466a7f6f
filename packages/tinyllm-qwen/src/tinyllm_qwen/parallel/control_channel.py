"""A connection between rank 0 and another rank. Each side detects the loss of the other side."""

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator

from tinyllm_qwen.malloc_trim import IDLE_SECONDS

HEARTBEAT_INTERVAL = 1.0
"""Seconds between two heartbeats."""

HEARTBEAT_TIMEOUT = 10.0
"""Seconds without a heartbeat after which the other process counts as lost."""

_END = b"end\n"

LossCallback = Callable[[int, str], None]
"""A function that gets the number of a lost rank and the reason as text, such as "has left"."""


class ControlChannel:
    """A channel that sends lines of text to another rank and receives lines from it.

    Empty lines are heartbeats. If the other process dies, the system closes its connection, and the
    loss is detected at once. If the other process hangs, or its machine is unplugged, heartbeats
    stop, and the loss is detected after `HEARTBEAT_TIMEOUT` seconds. If this process has not ended
    `HEARTBEAT_TIMEOUT` seconds after rank 0 announced its end, rank 0 counts as lost too,
    because this process then waits in a computation that needs rank 0.

    Attributes:
        rank: the number of the other rank.
    """

    def __init__(self, connection: socket.socket, rank: int, on_loss: LossCallback) -> None:
        """Start the threads that receive lines and send heartbeats.

        Args:
            connection: the connection to the other rank. The channel closes it.
            rank: the number of the other rank.
            on_loss: a callback for the loss of the other rank. A thread of the channel calls it,
                but never after `close`.
        """
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(HEARTBEAT_TIMEOUT)
        self.rank = rank
        self._connection = connection
        self._on_loss = on_loss
        self._closed = threading.Event()
        self._ended = threading.Event()
        self._sending = threading.Lock()
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        for work in (self._listen, self._send_heartbeats):
            threading.Thread(target=work, name=f"rank {rank}", daemon=True).start()

    def send(self, line: bytes) -> None:
        """Send a line. A broken connection raises no error: the listening thread reports it."""
        try:
            with self._sending:
                self._connection.sendall(line)
        except OSError:
            return

    def received(self, on_idle: Callable[[], None] = lambda: None) -> Iterator[bytes]:
        """Yield the lines of rank 0 as they arrive, until rank 0 announces its end.

        Args:
            on_idle: a function that is called once in each silence of `IDLE_SECONDS`.
        """
        timeout: float | None = IDLE_SECONDS
        while True:
            try:
                line = self._lines.get(timeout=timeout)
            except queue.Empty:
                on_idle()
                timeout = None
                continue
            if line is None:
                return
            yield line
            timeout = IDLE_SECONDS

    @property
    def ended(self) -> bool:
        """True once rank 0 has announced that it sends no more lines."""
        return self._ended.is_set()

    def ignore_loss(self) -> None:
        """Stop reporting the loss of the other rank, because this process will end."""
        self._closed.set()

    def close(self, *, announce: bool = True) -> None:
        """Close the connection. On rank 0, announce the end first, so that workers can end too.

        Without the announcement, workers report the loss of rank 0.
        """
        self.ignore_loss()  # before the announcement, because the other process may end at once
        if self.rank and announce:
            self.send(_END)
        with contextlib.suppress(OSError):  # the other process may have closed the connection
            self._connection.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        reason = "has left"
        try:
            with self._connection.makefile("rb") as lines:
                for line in lines:
                    if line == _END:
                        self._ended.set()
                        self._lines.put(None)
                        self._closed.wait(HEARTBEAT_TIMEOUT)
                        reason = "has ended in the middle of an answer"
                        break
                    if line != b"\n":
                        self._lines.put(line)
        except ConnectionResetError:  # the other process died before it read all lines
            pass
        except TimeoutError:
            reason = f"has given no sign of life for {HEARTBEAT_TIMEOUT:.0f} s"
        except (OSError, ValueError) as error:
            reason = f"cannot be reached: {error}"
        if not self._closed.is_set():
            self._on_loss(self.rank, reason)
        self._connection.close()

    def _send_heartbeats(self) -> None:
        while not self._closed.wait(HEARTBEAT_INTERVAL):
            self.send(b"\n")
