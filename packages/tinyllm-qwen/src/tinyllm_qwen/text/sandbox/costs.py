"""Estimates of the cost of filters and methods, made before a template calls them.

Most functions return a result that is hardly larger than their arguments, so their results are
charged after the call. This module estimates the costs of all other functions before the call. A
cost is an upper bound of the result in characters, and often much too high. It is computed from the
value and from the arguments in their order, named or not.
"""

import re
from collections.abc import Callable, Sequence

from tinyllm_qwen.text.sandbox.meter import ITEM

Cost = Callable[[object, Sequence[object]], int]
"""A function of a value and the other arguments of a call that returns the cost of the call."""

# Filters that no chat template needs, and that may take long for a short result.
WITHHELD_FILTERS = frozenset({"pprint", "striptags", "urlize", "wordwrap", "xmlattr"})
# Methods of strings and integers that no chat template needs: some codecs are quadratic, and
# translation tables grow a text.
WITHHELD_METHODS = frozenset({"encode", "from_bytes", "maketrans", "to_bytes", "translate"})

_HUGE = 1 << 40  # more than the allowance of a render
_MAX_PRECISION = 1000  # digits; `round` computes ten to the power of its precision
_SPACES = [*"\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"]
_SPACES += map(chr, range(0x2000, 0x200B))
_NUMBERS = re.compile(r"\d+")


def widths_in(layout: str) -> int:
    """Return the sum of all numbers in a format string, an upper bound of the widths in it."""
    numbers = _NUMBERS.findall(layout)
    return sum(int(number) if len(number) < 10 else _HUGE for number in numbers)


def percent_cost(layout: object, values: Sequence[object]) -> int:
    """Return the largest possible length of `layout % values`."""
    if not isinstance(layout, str):
        return 0
    stars = layout.count("*") * _widest(values)
    return widths_in(layout) + stars + layout.count("%") * _longest(values)


def _widest(given: Sequence[object]) -> int:
    return max((min(abs(item), _HUGE) for item in given if isinstance(item, int)), default=0)


def _longest(given: Sequence[object]) -> int:
    return max((len(item) for item in given if isinstance(item, str)), default=0)


def _width(_: object, given: Sequence[object]) -> int:
    return _widest(given)


def _tabs(value: object, given: Sequence[object]) -> int:
    return value.count("\t") * max(_widest(given), 8) if isinstance(value, str) else 0


def _replacements(value: object, given: Sequence[object]) -> int:
    old = given[0] if given else ""
    return value.count(str(old)) * _longest(given) if isinstance(value, str) else 0


def _separators(value: object, given: Sequence[object]) -> int:
    items = given[0] if given else ()
    return len(value) * len(items) if isinstance(value, str) and isinstance(items, list) else 0


def _pieces(value: object, given: Sequence[object]) -> int:
    """Return the cost of splitting a text by a separator or by white space: `ITEM` per piece."""
    if not isinstance(value, str):
        return 0
    separator = given[0] if given else None
    between = [separator] if isinstance(separator, str) else _SPACES
    return ITEM * sum(map(value.count, between))


def _indents(value: object, given: Sequence[object]) -> int:
    return _pieces(value, ()) // ITEM * max(_widest(given), _longest(given), 4)


def _power(_: object, given: Sequence[object]) -> int:
    return _HUGE if _widest(given) > _MAX_PRECISION else 0


def _characters(value: object, _: Sequence[object]) -> int:
    """Return the cost of a list of the characters of a text: `ITEM` per character."""
    return len(value) * ITEM if isinstance(value, str) else 0


def _comparisons(value: object, _: Sequence[object]) -> int:
    """Return the cost of a key for each item, lower-cased and compared: 1.5 us an item."""
    return len(value) * 8 * ITEM if isinstance(value, str | list | tuple | dict) else 0


def _parts(value: object, given: Sequence[object]) -> int:
    return _widest(given) * ITEM + _characters(value, given)


METHOD_COSTS: dict[str, Cost] = {
    "center": _width,
    "expandtabs": _tabs,
    "join": _separators,
    "ljust": _width,
    "replace": _replacements,
    "rjust": _width,
    "rsplit": _pieces,
    "split": _pieces,
    "splitlines": _pieces,
    "zfill": _width,
}

FILTER_COSTS: dict[str, Cost] = {
    "batch": _parts,
    "center": _width,
    "dictsort": _comparisons,
    "format": percent_cost,
    "groupby": _comparisons,
    "indent": _indents,
    "list": _characters,
    "max": _comparisons,
    "min": _comparisons,
    "replace": _replacements,
    "round": _power,
    "slice": _parts,
    "sort": _comparisons,
    "title": _characters,
    "unique": _comparisons,
    "wordcount": _characters,
}
