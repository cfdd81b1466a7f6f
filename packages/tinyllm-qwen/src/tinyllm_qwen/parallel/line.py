"""A connection between two processes that notices when the other one is gone."""

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator

BEAT = 1.0
"""Seconds between two signs of life."""

LIMIT = 10.0
"""Seconds without one after which the other process counts as lost."""

_END = b"end\n"

Loss = Callable[[int, str], None]


class Line:
    """Lines of text to and from another rank; empty ones are signs of life.

    A process that has died closes its connection, which is noticed at once. One that hangs, or
    whose machine is unplugged, says nothing any more: that takes `LIMIT` seconds. So does a rank 0
    that ends in good order while this process is in the middle of something that needs it.
    """

    def __init__(self, connection: socket.socket, rank: int, lost: Loss) -> None:
        """Listen, and give signs of life.

        Args:
            connection: to the other process; it belongs to the line from now on.
            rank: the other one's number.
            lost: called from a thread with that number and what happened, but not after `close`.
        """
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(LIMIT)
        self.rank = rank
        self._connection = connection
        self._lost = lost
        self._closed = threading.Event()
        self._ended = threading.Event()
        self._sending = threading.Lock()
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        for work in (self._listen, self._beat):
            threading.Thread(target=work, name=f"rank {rank}", daemon=True).start()

    def send(self, line: bytes) -> None:
        """Send a line; one that cannot be sent is noticed where the other one is listened to."""
        try:
            with self._sending:
                self._connection.sendall(line)
        except OSError:
            return

    def received(self) -> Iterator[bytes]:
        """The lines of rank 0, as they come, until it says that there are no more."""
        while True:
            line = self._lines.get()
            if line is None:
                return
            yield line

    @property
    def ended(self) -> bool:
        """Whether rank 0 has said that there are no more lines."""
        return self._ended.is_set()

    def let_go(self) -> None:
        """Call nobody any more when the other one is lost: this process is about to leave."""
        self._closed.set()

    def close(self) -> None:
        """Leave; rank 0 says so, the others are not to leave before it does."""
        self.let_go()  # first: the other one may be gone as soon as it is told
        if self.rank:
            self.send(_END)
        with contextlib.suppress(OSError):  # the other one may have been faster
            self._connection.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        why = "has left"
        try:
            with self._connection.makefile("rb") as lines:
                for line in lines:
                    if line == _END:
                        self._ended.set()
                        self._lines.put(None)
                        self._closed.wait(LIMIT)
                        why = "has ended in the middle of an answer"
                        break
                    if line != b"\n":
                        self._lines.put(line)
        except ConnectionResetError:  # it died with something unread
            pass
        except TimeoutError:
            why = f"has given no sign of life for {LIMIT:.0f} s"
        except (OSError, ValueError) as error:
            why = f"cannot be reached: {error}"
        if not self._closed.is_set():
            self._lost(self.rank, why)
        self._connection.close()

    def _beat(self) -> None:
        while not self._closed.wait(BEAT):
            self.send(b"\n")
