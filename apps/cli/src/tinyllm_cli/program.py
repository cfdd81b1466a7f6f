"""The frame of a program with a Typer command line: its exit code, errors and streams."""

import io
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import typer
from typer.models import OptionInfo

from tinyllm_cli.messages import (
    FAILURE,
    INTERRUPTED,
    USAGE,
    UsageError,
    drop_output,
    notice,
    one_line,
)

ARGUMENT = "ARGUMENT"
"""The key of `run_program`'s remedy for arguments."""

_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", re.DOTALL)


def new_app() -> typer.Typer:
    """Return an empty Typer application with plain help and plain errors."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def version_option(name: str) -> OptionInfo:
    """Declare the option `--version` of the program `name` of the package `tinyllm-{name}`."""

    def show(wanted: bool) -> bool:
        if wanted:
            from importlib.metadata import version  # imported here: takes 20 ms

            typer.echo(f"{name} {version(f'tinyllm-{name}')}")
            raise typer.Exit
        return wanted

    option: OptionInfo = typer.Option(
        "--version", help="Print the version.", is_eager=True, callback=show
    )
    return option


def run_program(
    app: typer.Typer,
    program: str,
    run: Callable[[Any], int | None] | None = None,
    *,
    say: Callable[[str], None] | None = None,
    remedies: Mapping[str, str] | None = None,
) -> int:
    """Run a command line and return its exit code: 0, 2 for usage, 130 after Ctrl-C, 1 otherwise.

    An error or a warning is one line. The code is also 0 if the reader of a pipe closes it early.
    Characters that the encoding of stdout lacks are written as "?".

    Args:
        app: the application.
        program: the name of the command in its help and errors.
        run: does the work, with the options that the command returns; None if the command does it.
        say: writes a line to stderr; by default after the name of the program.
        remedies: for options that the program lacks, such as those of similar programs, what to do
            instead; `ARGUMENT` for a word that is no option, which "{}" stands for.
    """
    tell = say or (lambda text: notice(text, program))
    _replace_closed_streams()
    _accept_all_characters()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_place: tell(str(message))
            result = app(prog_name=program, standalone_mode=False)
            if run is not None and not isinstance(result, int):  # an int: --help or --version
                result = run(result)
        sys.stdout.flush()
        return int(result or 0)
    except (typer.TyperException, UsageError) as error:
        text = str(error)
        if isinstance(error, typer.TyperException):
            text = _with_remedy(error, remedies or {}) or error.format_message()
        tell(f"{one_line(text)} (see {program} --help)")
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        drop_output()
        return 0
    except (ValueError, RuntimeError, OSError, MemoryError) as error:
        tell(one_line(error))
        if isinstance(error, OSError):  # stdout is full, for example
            drop_output()
        return FAILURE
    except SystemExit as error:
        # typer turns the error of a closed pipe into this one, with code 1.
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        drop_output()
        return 0


def _with_remedy(error: typer.TyperException, remedies: Mapping[str, str]) -> str | None:
    """Return the message for an unknown option or argument that has a remedy, otherwise None."""
    message = error.format_message()
    if found := _EXTRA.fullmatch(message):
        word = found[1].partition(" ")[0]
        remedy = remedies.get(ARGUMENT)
        return f"{word}: expected options alone: {remedy.format(word)}" if word and remedy else None
    if not message.startswith("No such option: "):
        return None
    given: str = getattr(error, "option_name", "")
    # Of -tp, the error names -t.
    words = [word.partition("=")[0] for word in sys.argv[1:] if word.startswith(given)]
    known = (word for word in words if word in remedies)
    return next((f"{word}: unknown here: {remedies[word]}" for word in known), None)


def exit_on_signals() -> None:
    """Raise SystemExit on SIGTERM and SIGHUP, so that `finally` and context managers clean up.

    By default both signals end Python at once. The exit code is 128 + the number of the signal. An
    ignored signal stays ignored, as nohup expects of SIGHUP. Call this in the main thread.
    """

    def on_signal(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, on_signal)


def _replace_closed_streams() -> None:
    """Open the null device in place of closed standard streams.

    Otherwise the next opened file gets the descriptor of a closed stream, and MLX treats
    descriptor 0 as an error.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w"))


def _accept_all_characters() -> None:
    """Write "?" for characters that the encoding of a stream lacks, so that no result is lost.

    A stream keeps an error handler that does not raise. In UTF-8, surrogateescape is one of them:
    it writes the bytes of file names that are not UTF-8.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and (
            stream.errors == "strict"
            or (stream.errors == "surrogateescape" and stream.encoding != "utf-8")
        ):
            stream.reconfigure(errors="replace")
