"""What asks the process to end."""

import asyncio
import signal


class Signals:
    """Notes SIGTERM and SIGINT, from when it is made.

    Attributes:
        first: set by the first of them, which asks for an end in good order.
        second: set by the next one, which asks for an end at once.
    """

    def __init__(self) -> None:
        """Take both signals over, in the running event loop."""
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._note)

    def _note(self) -> None:
        (self.second if self.first.is_set() else self.first).set()
