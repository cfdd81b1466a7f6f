"""The command line of `tinyllm models`."""

from typing import Annotated

import typer

from tinyllm_cli.messages import FAILURE, notice
from tinyllm_cli.program import new_app, run_program

_HELP = """List, download, describe and remove models.

Models come from the Hugging Face Hub and lie in its cache, which other programs share. HF_HOME,
HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE work as with huggingface_hub.
"""
_ID = Annotated[
    str,
    typer.Argument(metavar="ID", help="owner/name on the Hugging Face Hub.", show_default=False),
]

app = new_app()


def main(program: str = "tinyllm models") -> int:
    """Run `tinyllm models`, and return its exit code; see `run_program`."""
    return run_program(app, program, say=lambda text: notice(f"models: {text}"))


@app.callback(invoke_without_command=True, help=_HELP)
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
