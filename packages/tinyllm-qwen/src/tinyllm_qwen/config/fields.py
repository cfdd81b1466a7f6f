"""Typed access to the fields of a JSON object, with checks of types and ranges."""

import math
from collections.abc import Mapping

from tinyllm_qwen.errors import CheckpointError

MAX_ITEMS = 1 << 14  # the most items of a list in a config


class Fields:
    """A JSON object with a getter for each type. A field that is null counts as absent.

    Every getter raises CheckpointError if the value has another type or is out of range. The
    message has the name of the field, and the expected and the actual value.
    """

    def __init__(self, values: Mapping[str, object], source: str) -> None:
        """Wrap a decoded object. `source` is its name in error messages, such as "config.json"."""
        self._values = values
        self.source = source

    def raw(self, name: str) -> object:
        """Return the decoded value of any type, or None if it is absent."""
        return self._values.get(name)

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """Return an integer in [low, high]. Without a default, the field is required."""
        value = self.raw(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(name, f"an integer from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """Return a finite number in [low, high]. Without a default, the field is required."""
        value = self.raw(name)
        if value is None and default is not None:
            return default
        # Compare before the conversion, because float() of a huge integer overflows. NaN is refused
        # because every comparison with NaN is false.
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= high
        ):
            raise self.error(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean, or the default if it is absent."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def text(self, name: str) -> str | None:
        """Return a string, or None if it is absent."""
        value = self.raw(name)
        if value is not None and not isinstance(value, str):
            raise self.error(name, "a string")
        return value

    def table(self, name: str) -> dict[str, object] | None:
        """Return a JSON object, or None if it is absent."""
        value = self.raw(name)
        if value is not None and not isinstance(value, dict):
            raise self.error(name, "an object")
        return value

    def nested(self, name: str) -> "Fields":
        """Return the fields of a JSON object; no fields if it is absent."""
        return Fields(self.table(name) or {}, f"{self.source}: {name}")

    def layers_of(self, kind: str, other: str, count: int) -> frozenset[int] | None:
        """Return the layers of a kind in `layer_types`, by number; None if the field is absent.

        The field is a list of `count` kinds, one per layer. Each is `kind` or `other`.
        """
        kinds = self.raw("layer_types")
        if kinds is None:
            return None
        if not isinstance(kinds, list) or len(kinds) != count:
            raise self.error("layer_types", f"a list of {count} kinds, one per layer")
        for each in kinds:
            if each not in (kind, other):
                raise self.error("layer_types", f"{kind} or {other} (found {show(each)})")
        return frozenset(layer for layer, each in enumerate(kinds) if each == kind)

    def integers(self, name: str, low: int, high: int) -> tuple[int, ...]:
        """Return an integer or a list of integers, each in [low, high]; empty if it is absent."""
        value = self.raw(name)
        items = value if isinstance(value, list) else [] if value is None else [value]
        if len(items) > MAX_ITEMS:
            raise self.error(name, f"at most {MAX_ITEMS} integers")
        for item in items:
            if isinstance(item, bool) or not isinstance(item, int) or not low <= item <= high:
                raise self.error(name, f"integers from {low} to {high}")
        return tuple(items)

    def numbers(self) -> list[str]:
        """List the fields whose value is a number."""
        return [
            name
            for name, value in self._values.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        ]

    def error(self, name: str, expected: str) -> CheckpointError:
        """Make the error for a field, with the expected and the actual value."""
        value = self.raw(name)
        actual = "nothing" if value is None else show(value)
        return CheckpointError(f"{self.source}: {name}: expected {expected}, got {actual}")


def label(name: str) -> str:
    """Return a name from a file for an error message, shortened and without control characters."""
    return name[:80] if name.isprintable() else repr(name)[:80]


def show(value: object) -> str:
    """Return a value for an error message, shortened."""
    if isinstance(value, int) and abs(value) >= 10**20:
        return f"an integer of about {math.floor(value.bit_length() * math.log10(2))} digits"
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)} entries"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
