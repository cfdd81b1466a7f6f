"""A connection between rank 0 and another rank that detects the loss of either."""

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator

HEARTBEAT_INTERVAL = 1.0
"""Seconds between two heartbeats."""

HEARTBEAT_TIMEOUT = 10.0
"""Seconds without a heartbeat after which the other process counts as lost."""

_END = b"end\n"

LossCallback = Callable[[int, str], None]
"""A function of the number of a lost rank and the description of the loss."""


class ControlChannel:
    """Lines of text to and from another rank; empty lines are heartbeats.

    A process that has died closes its connection, which is detected at once. A process that hangs,
    or whose machine is unplugged, stops sending: that is detected after `HEARTBEAT_TIMEOUT`
    seconds. A rank 0 that ends in good order counts as lost too, if this process is in the middle
    of a computation that needs it.

    Attributes:
        rank: the number of the other process.
    """

    def __init__(self, connection: socket.socket, rank: int, on_loss: LossCallback) -> None:
        """Start to listen and to send heartbeats.

        Args:
            connection: the connection to the other process. The channel owns it from now on.
            rank: the number of the other process.
            on_loss: a callback for the loss of the other process, called from a thread. It is not
                called after `close`.
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
        """Send a line. The listening thread reports a connection that is broken."""
        try:
            with self._sending:
                self._connection.sendall(line)
        except OSError:
            return

    def received(self) -> Iterator[bytes]:
        """Yield the lines of rank 0 as they arrive, until it ends."""
        while True:
            line = self._lines.get()
            if line is None:
                return
            yield line

    @property
    def ended(self) -> bool:
        """True once rank 0 has announced that it sends no more lines."""
        return self._ended.is_set()

    def ignore_loss(self) -> None:
        """Stop reporting the loss of the other process, because this process is about to end."""
        self._closed.set()

    def close(self) -> None:
        """Close the connection. Rank 0 announces it, so that the other ranks may end too."""
        self.ignore_loss()  # first: the other process may end at once
        if self.rank:
            self.send(_END)
        with contextlib.suppress(OSError):  # the other process may have closed it already
            self._connection.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        why = "has left"
        try:
            with self._connection.makefile("rb") as lines:
                for line in lines:
                    if line == _END:
                        self._ended.set()
                        self._lines.put(None)
                        self._closed.wait(HEARTBEAT_TIMEOUT)
                        why = "has ended in the middle of an answer"
                        break
                    if line != b"\n":
                        self._lines.put(line)
        except ConnectionResetError:  # the process died with unread lines
            pass
        except TimeoutError:
            why = f"has given no sign of life for {HEARTBEAT_TIMEOUT:.0f} s"
        except (OSError, ValueError) as error:
            why = f"cannot be reached: {error}"
        if not self._closed.is_set():
            self._on_loss(self.rank, why)
        self._connection.close()

    def _send_heartbeats(self) -> None:
        while not self._closed.wait(HEARTBEAT_INTERVAL):
            self.send(b"\n")
