"""Commands of `bench`, and of the tools that build on it, from dataclasses of options."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from inspect import Parameter, Signature
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from tinyllm_cli.messages import UsageError

Options = TypeVar("Options")


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
        if context is not None and context.invoked_subcommand is not None:
            for each in context.command.params:
                source = context.get_parameter_source(each.name)
                if source is not None and source.name == "COMMANDLINE":
                    after = f"expected after `{context.invoked_subcommand}`"
                    raise UsageError(f"{each.opts[0]}: {after}, got it before")
            return 0
        return run(options(**{n: value for n, value in values.items() if n in hints}, **given))

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
