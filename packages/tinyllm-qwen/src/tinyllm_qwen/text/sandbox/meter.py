"""The limits of a chat template: work, memory and time."""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from jinja2.exceptions import SecurityError

# The allowance of one render: three seconds of steps, or 256 M characters in all of its values
# together. A conversation of a thousand turns and a megabyte takes a twentieth of it.
STEPS = 1 << 19
STEP = 512  # a step, in characters
ITEM = 32  # an entry of a list, in characters: about the memory that it takes
ESCAPE = 12  # the most characters of an escape in the text of a list or a mapping
SECONDS = 10.0  # of the thread's CPU time, so that a busy machine stops no template
MAX_TEXT = 1 << 24  # characters of one value
MAX_INTEGER_BITS = 4096

T = TypeVar("T")


class TemplateMeter:
    """The allowance of one render. Exceeding it raises jinja2's SecurityError.

    A value is charged, with everything in it, when it is made. So no value is larger than the
    allowance, even if lists hold each other many times, and no single operation takes long. The
    clock is checked between two operations.
    """

    def __init__(self) -> None:
        """Begin with no allowance, so that the compiler does not evaluate constants unmetered."""
        self._left = 0
        self._deadline = 0.0

    def start(self) -> None:
        """Allow one render."""
        self._left = STEPS * STEP
        self._deadline = time.thread_time() + SECONDS

    def spend(self, characters: int = 0) -> None:
        """Count a step and `characters`."""
        self._charge(STEP + characters)
        if time.thread_time() > self._deadline:
            raise SecurityError(f"it takes more than {SECONDS:g} s")

    def spend_on(self, value: T) -> T:
        """Count a step and everything in `value`; return `value`."""
        self.spend()
        self._weigh(value, 1)
        return value

    def spend_on_items(self, items: Iterable[T], characters: int = 0) -> Iterator[T]:
        """Count a step and `characters` for each item of a loop."""
        for item in items:
            self.spend(characters)
            yield item

    def spend_on_text(self, value: T) -> T:
        """Count the length of `value` as text; return `value`."""
        self._weigh(value, ESCAPE if isinstance(value, list | tuple | Mapping) else 1)
        return value

    def spend_on_view(self, value: T) -> T:
        """Count a slice of a value; return it. It is a copy, but its items were charged before."""
        entry = ITEM if isinstance(value, list | tuple) else 1
        self.spend(len(value) * entry if isinstance(value, list | tuple | str) else 0)
        return value

    def _weigh(self, value: object, factor: int) -> None:
        """Charge `factor` times everything in `value`. An item counts at each occurrence."""
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
