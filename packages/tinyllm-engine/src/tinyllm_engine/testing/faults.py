"""Faults that tests plant in the source of the engine."""

import inspect
import textwrap
from collections.abc import Callable
from typing import cast


def with_fault(function: Callable[..., object], old: str, new: str) -> Callable[..., object]:
    """Return a function with one piece of its source replaced.

    Raises:
        AssertionError: if the source does not have the piece exactly once.
    """
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{function.__qualname__} has changed: {old!r}"
    names = dict(inspect.unwrap(function).__globals__)
    exec(source.replace(old, new), names)
    return cast("Callable[..., object]", names[function.__name__])
