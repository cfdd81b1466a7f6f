"""The command line of `tinyllm models`."""

from typing import Annotated

import typer

from tinyllm_cli.messages import FAILURE, INTERRUPTED, USAGE, notice

_HELP = """List, download, describe and remove models.

Models come from the Hugging Face Hub and lie in its cache, which other programs share. HF_HOME,
HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE work as with huggingface_hub.
"""
_ID = Annotated[
    str,
    typer.Argument(metavar="ID", help="owner/name on the Hugging Face Hub.", show_default=False),
]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=False,
    help=_HELP,
)


def main(program: str = "tinyllm models") -> int:
    """Run `tinyllm models`, and return its exit code.

    The code is 0, 2 for usage, 130 after Ctrl-C and 1 otherwise.
    """
    try:
        return int(app(prog_name=program, standalone_mode=False) or 0)
    except typer.TyperException as error:
        notice(f"models: {error.format_message()} (see {program} --help)")
        return USAGE
    except KeyboardInterrupt:
        notice("models: interrupted: run it again; what has arrived is kept")
        return INTERRUPTED
    except (ValueError, RuntimeError, OSError) as error:
        notice(f"models: {error}")
        return FAILURE
    except SystemExit as error:
        # typer turns the error of a closed pipe into this one, with code 1.
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        return 0


@app.callback(invoke_without_command=True)
def models(context: typer.Context) -> None:
    """List the models if no command is given."""
    if context.invoked_subcommand is None:
        list_models()


# The functions below import the Hub's client and MLX, which --help does not need.


@app.command("list")
def list_models() -> None:
    """List the models on this machine."""
    from tinyllm_cli.models import actions

    actions.list_models()


@app.command()
def pull(
    name: _ID,
    revision: Annotated[
        str | None, typer.Option(metavar="REV", help="Branch, tag or commit.")
    ] = None,
) -> None:
    """Download a model, with progress on stderr, and print its folder."""
    from tinyllm_cli.models import actions

    actions.pull(name, revision)


@app.command()
def show(name: _ID) -> None:
    """Describe a model on this machine. ID may also be pico."""
    from tinyllm_cli.models import actions

    actions.show(name)


@app.command()
def remove(
    name: _ID,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Remove all revisions of a model from the cache."""
    from tinyllm_cli.models import actions

    return 0 if actions.remove(name, ask=not yes) else FAILURE
