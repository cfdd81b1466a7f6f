"""Declarations of command-line options, and checks of their values."""

import math
from dataclasses import dataclass

from typer import Exit, Option, echo
from typer.models import OptionInfo

from tinyllm_serve.errors import UsageError


@dataclass(frozen=True)
class Range:
    """The bounds of a number, both included. NaN is outside of every range."""

    low: float | int
    high: float | int = math.inf

    def __str__(self) -> str:
        """Write the range for an error message."""
        if self.high == math.inf:
            return f"at least {self.low}"
        return f"from {self.low} to {self.high}"


def option(metavar: str, text: str, names: str = "") -> OptionInfo:
    """Declare an option with its help; two names are separated by a slash."""
    declared: OptionInfo = Option(*filter(None, names.split("/")), metavar=metavar, help=text)
    return declared


def print_version(wanted: bool) -> bool:
    """Print the version and exit, if it is wanted."""
    if wanted:
        from importlib.metadata import version  # imported here: takes 20 ms

        echo(f"serve {version('tinyllm-serve')}")
        raise Exit
    return wanted


def check(name: str, value: str | float | int, expected: str, valid: bool) -> None:
    """Raise UsageError if the value of an option is not valid."""
    if not valid:
        flag = f"--{name.replace('_', '-')}"
        raise UsageError(f"{flag}: expected {expected}, got {value}")
