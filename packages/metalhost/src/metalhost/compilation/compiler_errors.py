"""Parser for the errors of g++ and clang, which finds the lines of the kernel."""

import re
from collections.abc import Iterator

from metalhost.text.problem import Problem

_ERROR = re.compile(r"(?P<location>.*?): (?:fatal )?error: (?P<message>.*)")
_KERNEL_LINE = re.compile(r"<(source|header|signature)>:(\d+)")
_MAX_UNPARSED = 4000  # characters of output that is reported as it is


def problems(output: str) -> list[Problem]:
    """Return the errors in the output of g++ or clang.

    An error in a header of metalhost is reported at the kernel's line that led there. g++ names
    this line before the error, clang after it.
    """
    found = list(_kernel_errors(output.split("\n")))
    if found or not output:
        return found
    return [Problem("compiler", 0, output.strip()[:_MAX_UNPARSED])]


def _kernel_errors(lines: list[str]) -> Iterator[Problem]:
    previous = -1  # index of the previous error
    for at, line in enumerate(lines):
        error = _ERROR.match(line)
        if error is None:
            continue
        before = reversed(lines[previous + 1 : at])
        previous = at
        place = (
            _KERNEL_LINE.search(error["location"])
            or _first_kernel_line(before)
            or _first_kernel_line(lines[at:])
        )
        if place is not None:
            yield Problem(place[1], int(place[2]), error["message"])


def _first_kernel_line(lines: Iterator[str] | list[str]) -> re.Match[str] | None:
    return next((found for line in lines if (found := _KERNEL_LINE.search(line))), None)
