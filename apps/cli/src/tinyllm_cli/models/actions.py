"""The actions of `tinyllm models`. Results go to stdout, questions and progress to stderr."""

import dataclasses
import difflib
import sys

import typer
from huggingface_hub import constants, scan_cache_dir
from tinyllm_qwen.checkpoint.download import fetch
from tinyllm_qwen.checkpoint.hub import BUILT_IN
from tinyllm_qwen.format_bytes import format_bytes

from tinyllm_cli.messages import notice
from tinyllm_cli.models.cached import CachedModel, built_in, cached_models, cached_repositories


def list_models() -> None:
    """Print one line for each model: its name, its size, its format."""
    models = [built_in(), *cached_models()]
    width = max(len(model.name) for model in models)
    for model in models:
        state = model.architecture if model.config else "tinyllm cannot run it, see `show`"
        typer.echo(f"{model.name:<{width}}  {format_bytes(model.nbytes):>9}  {state}")
    notice(f"models: {len(models) - 1} in {constants.HF_HUB_CACHE}, and {BUILT_IN}, built in")


def pull(name: str, revision: str | None) -> None:
    """Download a model unless the cache has it, and print its folder.

    Raises:
        ValueError: if the model is built in, or tinyllm cannot run it.
        HubError: if the repository cannot be fetched. The message has the reason and a remedy.
    """
    if name == BUILT_IN:
        raise ValueError(f"{BUILT_IN} is built in: run `tinyllm chat`")
    folder = fetch(name, revision)
    typer.echo(folder)
    model = next((each for each in cached_models() if each.name == name), None)
    if model is not None and model.folder == folder and model.reason:
        raise ValueError(
            f"{name} was downloaded, but tinyllm cannot run it ({model.reason}): "
            f"`tinyllm models remove {name}` frees {format_bytes(model.nbytes)}"
        )


def show(name: str) -> None:
    """Print what is known of a model.

    Raises:
        ValueError: if the model is not on this machine.
    """
    model = _named(name)
    rows = {"name": model.name, "folder": str(model.folder), "size": format_bytes(model.nbytes)}
    if model.revisions:
        rows["revisions"] = ", ".join(model.revisions)
    config = model.config
    if config is None:
        rows["runs"] = f"no: {model.reason}"
    else:
        rows |= {
            "architecture": model.architecture,
            "layers": str(config.num_hidden_layers),
            "width": str(config.hidden_size),
            "context": f"{config.context_length} tokens",
            "runs": f"yes: tinyllm chat --model {model.name}",
        }
    for key, value in rows.items():
        typer.echo(f"{key:<13}{value}")


def remove(name: str, *, ask: bool) -> bool:
    """Remove a model from the cache, and print what was freed; return False if the user declines.

    Raises:
        ValueError: if the model is not in the cache, or `ask` is true and stdin is not a terminal.
    """
    if name == BUILT_IN:
        raise ValueError(f"{BUILT_IN} is part of the installation: it cannot be removed alone")
    model = _named(name)
    if ask:
        if not sys.stdin.isatty():
            raise ValueError("remove: expected --yes, because stdin is not a terminal")
        typer.echo(f"Remove {model.name}, {format_bytes(model.nbytes)}? [y/N] ", nl=False, err=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            notice("models: nothing was removed")
            return False
    cache = scan_cache_dir(constants.HF_HUB_CACHE)
    # Two repositories may have equal commits, such as a mirror, or one that was renamed.
    only = frozenset(
        each for each in cache.repos if (each.repo_type, each.repo_id) == ("model", model.name)
    )
    dataclasses.replace(cache, repos=only).delete_revisions(*model.revisions).execute()
    if any(each.repo_id == model.name for each in cached_repositories()):
        raise ValueError(
            f"{model.name} could not be removed whole from {constants.HF_HUB_CACHE}: check the "
            "owner of its files"
        )
    typer.echo(f"removed {model.name}, {format_bytes(model.nbytes)}")
    return True


def _named(name: str) -> CachedModel:
    """Return the model on this machine with a name.

    Raises:
        ValueError: if there is none. The message has the most similar name, or the next step.
    """
    models = {model.name: model for model in [built_in(), *cached_models()]}
    if name in models:
        return models[name]
    near = difflib.get_close_matches(name, models, n=1)
    hint = f"did you mean {near[0]}?" if near else "`tinyllm models list` shows those it has"
    raise ValueError(f"{name[:200]!r} is not on this machine: {hint}")
