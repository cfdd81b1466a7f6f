"""The meter that limits the work, memory and time of a chat template."""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from jinja2.exceptions import SecurityError

# The allowance of one render: 256 M characters in all values together, or two seconds. A
# conversation of a thousand turns and a megabyte takes a twentieth of the allowance.
STEPS = 1 << 19
STEP = 512  # cost of a step, in characters
ITEM = 32  # cost of an entry of a list, in characters; about its size in memory
ESCAPE = 12  # largest length of an escape sequence in the text of a list or a mapping
SECONDS = 2.0  # limit of the CPU time of the thread, which other processes do not affect
MAX_TEXT = 1 << 24  # largest length of one text, in characters
MAX_INTEGER_BITS = 4096

T = TypeVar("T")


class TemplateMeter:
    """The meter of one render. It raises jinja2's SecurityError if the allowance is exceeded.

    When a value is made, the value and all its items are charged. So no value is larger than the
    allowance, even if nested lists contain the same list many times, and no single operation takes
    long. The time is checked between two operations.
    """

    def __init__(self) -> None:
        """Start without allowance, so that the compiler cannot evaluate constants unmetered."""
        self._left = 0
        self._deadline = 0.0

    def start(self) -> None:
        """Set the allowance of one render."""
        self._left = STEPS * STEP
        self._deadline = time.thread_time() + SECONDS

    def spend(self, characters: int = 0) -> None:
        """Charge a step and `characters`."""
        self._charge(STEP + characters)
        if time.thread_time() > self._deadline:
            raise SecurityError(f"it takes more than {SECONDS:g} s")

    def spend_on(self, value: T) -> T:
        """Charge a step, and the value with all its items; return the value."""
        self.spend()
        self._weigh(value, 1)
        return value

    def spend_on_items(self, items: Iterable[T], characters: int = 0) -> Iterator[T]:
        """Yield the items of a loop; charge a step and `characters` for each item."""
        for item in items:
            self.spend(characters)
            yield item

    def spend_on_text(self, value: T) -> T:
        """Charge an upper bound of the length of the value as text; return the value."""
        self._weigh(value, ESCAPE if isinstance(value, list | tuple | Mapping) else 1)
        return value

    def spend_on_view(self, value: T) -> T:
        """Charge the copy that a slice makes, without its items, which were charged before.

        Returns:
            The slice.
        """
        entry = ITEM if isinstance(value, list | tuple) else 1
        self.spend(len(value) * entry if isinstance(value, list | tuple | str) else 0)
        return value

    def _weigh(self, value: object, factor: int) -> None:
        """Charge `factor` times the size of a value and all its items, at each occurrence."""
        waiting = [value]
        while waiting:
            item = waiting.pop()
            if isinstance(item, str):
                self._charge(len(item) * factor)
                if len(item) > MAX_TEXT:
                    raise SecurityError(f"it makes a text of {len(item)} characters")
            elif isinstance(item, list | tuple | range):
                self._charge(len(item) * ITEM * factor)
                if not isinstance(item, range):
                    waiting.extend(item)
            elif isinstance(item, Mapping):
                self._charge(2 * len(item) * ITEM * factor)
                waiting.extend(item)
                waiting.extend(item.values())
            elif isinstance(item, int) and item.bit_length() > MAX_INTEGER_BITS:
                raise SecurityError("it computes huge numbers")

    def _charge(self, characters: int) -> None:
        self._left -= characters
        if self._left < 0:
            raise SecurityError("it does not come to an end, or asks for too much memory")
