"""What a compiler said about a kernel, by the kernel's own lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from metalhost.problem import Problem

_ERROR = re.compile(r"(?P<where>.*?): (?:fatal )?error: (?P<what>.*)")
_PLACE = re.compile(r"<(source|header|signature)>:(\d+)")
_LONGEST = 4000  # characters of output that is not understood


def problems(said: str) -> list[Problem]:
    """The errors in the output of g++ or clang.

    An error in a header of ours is one of the kernel's line that led there. g++ names that line
    before the error, clang after it.
    """
    found = list(_located(said.split("\n")))
    if found or not said:
        return found
    return [Problem("compiler", 0, said.strip()[:_LONGEST])]


def _located(lines: list[str]) -> Iterator[Problem]:
    last_error = -1
    for at, line in enumerate(lines):
        error = _ERROR.match(line)
        if error is None:
            continue
        before = reversed(lines[last_error + 1 : at])
        last_error = at
        place = _PLACE.search(error["where"]) or _first_place(before) or _first_place(lines[at:])
        if place is not None:
            yield Problem(place[1], int(place[2]), error["what"])


def _first_place(lines: Iterator[str] | list[str]) -> re.Match[str] | None:
    return next((found for line in lines if (found := _PLACE.search(line))), None)
