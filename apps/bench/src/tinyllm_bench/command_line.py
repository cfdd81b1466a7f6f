"""Shared parts of the command lines of `bench` and of the tools that build on it."""

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from inspect import Parameter, Signature
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from tinyllm_bench.errors import UsageError, one_line

FAILURE, USAGE, INTERRUPTED = 1, 2, 130

Options = TypeVar("Options")


def new_app() -> typer.Typer:
    """Return an empty Typer application with plain help and plain errors."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def run_program(app: typer.Typer, name: str) -> int:
    """Run a command line and return its exit code.

    The exit code is 0, 2 for a usage error, 130 after Ctrl-C and 1 for other errors. An error or a
    warning is one line on stderr.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_place: notice(str(message), name)
            return int(app(prog_name=name, standalone_mode=False) or 0)
    except typer.TyperException as error:
        notice(f"{' '.join(error.format_message().split())} (see {name} --help)", name)
        return USAGE
    except UsageError as error:
        notice(one_line(error), name)
        return USAGE
    except KeyboardInterrupt:  # before anything was measured
        return INTERRUPTED
    except (ValueError, RuntimeError, OSError) as error:
        notice(one_line(error), name)
        return FAILURE
    except SystemExit as error:
        # typer turns the error of a closed pipe into this one, with code 1.
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        return 0


def notice(text: str, program: str = "bench") -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"{program}: {text}\n")
    sys.stderr.flush()


def option(default: Any, metavar: str | None, text: str, *names: str, **more: Any) -> Any:
    """Return a dataclass field that is an option of a command, by default named as the field.

    An option with a list as its default may be repeated. A flag has None as its `metavar`. `more`
    are further arguments of `typer.Option`.
    """
    metadata = {"names": names, "option": {"metavar": metavar, "help": text, **more}}
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def command(
    options: type[Options],
    run: Callable[[Options], int],
    fixed: Mapping[str, object] | None = None,
    without: tuple[str, ...] = (),
    *more: Parameter,
) -> Callable[..., int]:
    """Make a Typer command from a dataclass whose fields are made by `option`.

    Fields in `fixed` have the given value, and fields in `without` have their default: both are no
    options of the command. Of the further parameters, `context_` receives the Typer context of a
    group of commands. The docstring of `run` is the help text.
    """
    given = dict(fixed or {})
    hints = get_type_hints(options)

    def invoke(**values: Any) -> int:
        context = values.get("context_")
        chosen = options(**{n: value for n, value in values.items() if n in hints}, **given)
        if context is not None and context.invoked_subcommand is not None:
            if chosen != options(**given):
                name = context.invoked_subcommand
                raise UsageError(f"options: expected after `{name}`, got some before it")
            return 0
        try:
            code = run(chosen)
            sys.stdout.flush()
        except BrokenPipeError:  # The reader left early. Typer would exit with code 1.
            # Python flushes both streams once more at exit and would print the error again.
            for stream in (sys.stdout, sys.stderr):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            return 0
        return code

    assert is_dataclass(options)
    chosen = [each for each in fields(options) if each.name not in {*given, *without}]
    parameters = [_parameter(each, hints[each.name]) for each in chosen]
    signature = Signature([*parameters, *more])
    invoke.__signature__ = signature  # type: ignore[attr-defined] # functions declare no signature
    invoke.__annotations__ = {}
    invoke.__doc__ = run.__doc__
    return invoke


def _parameter(each: "Field[Any]", kind: Any) -> Parameter:
    """Return the Typer parameter of a field that `option` made."""
    default = each.default if each.default_factory is MISSING else each.default_factory()
    # With an explicit name, Typer gives a flag no second name that begins with "--no-".
    names = each.metadata["names"] or ("--" + each.name.replace("_", "-"),)
    typed = Annotated[kind, typer.Option(*names, **each.metadata["option"])]
    return Parameter(each.name, Parameter.KEYWORD_ONLY, default=default, annotation=typed)
