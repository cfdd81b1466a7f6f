"""The command line: `convert`."""

import os
import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from tinyllm_convert.errors import UsageError, one_line

USAGE, FAILURE, INTERRUPTED = 2, 1, 130

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def main() -> int:
    """Run `convert` and give its exit code: 0, 2 for usage, 130 after Ctrl-C, 1 otherwise."""
    _open_streams()
    try:
        return int(app(prog_name="convert", standalone_mode=False) or 0)
    except typer.TyperException as error:
        _notice(f"{' '.join(error.format_message().split())} (see convert --help)")
        return USAGE


@app.command()
def convert(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="SOURCE", help="A folder or owner/name on the Hugging Face Hub, not quantized."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET", help="The folder to make; it must not exist, or be empty."
        ),
    ] = None,
    bits: Annotated[int | None, typer.Option(metavar="2|3|4|5|6|8", help="Bits of a code.")] = None,
    group_size: Annotated[
        int | None,
        typer.Option(metavar="32|64|128", help="Numbers that share a scale; 64 unless given."),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="affine|mxfp4|mxfp8|nvfp4",
            help="Integers, or floating-point codes with bits and groups of their own.",
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="float32|float16|bfloat16",
            help="Of what is not packed; the source's own unless given.",
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Leave matrices alone: lm_head, '*.v_proj', ..."),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(metavar="REV", help="Branch, tag or commit on the Hub.")
    ] = None,
    shard_size: Annotated[float, typer.Option(metavar="GB", help="The largest file.")] = 5.0,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> int:
    """Write a checkpoint for MLX: quantized where --bits or --mode is given.

    Reads Qwen2, Qwen2.5, Qwen3 and Qwen3-MoE as Hugging Face has them, tensor by tensor. The
    target comes into being complete or not at all. Exit codes: 0; 2 for usage; 130 after Ctrl-C;
    1 otherwise.
    """
    if version:
        from importlib.metadata import version as version_of  # 20 ms, for this option alone

        typer.echo(f"convert {version_of('tinyllm-convert')}")
        return 0
    if source is None or target is None:
        _notice("expected a SOURCE and a TARGET (see convert --help)")
        return USAGE
    _clean_up_when_told_to_end()
    try:
        from tinyllm_convert.options import Options  # with MLX, which --help can do without
        from tinyllm_convert.run import run

        options = Options(
            bits=bits,
            group_size=group_size,
            mode=mode,
            dtype=dtype,
            skip=tuple(skip or ()),
            shard_size=shard_size,
        )
        run(source, target, revision, options)
    except UsageError as error:
        _notice(f"{one_line(error)} (see convert --help)")
        return USAGE
    except KeyboardInterrupt:
        _notice("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # whoever reads the report has seen enough
        # Python flushes both streams once more when it exits, and would complain.
        for stream in (sys.stdout, sys.stderr):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (ValueError, RuntimeError, OSError, MemoryError) as error:
        _notice(one_line(error))
        return FAILURE
    return 0


def _notice(text: str) -> None:
    """One line that the user should read."""
    typer.echo(f"convert: {text}", err=True)


def _clean_up_when_told_to_end() -> None:
    """Have the signals of kill and of a closed terminal unwind the stack, as Ctrl-C does."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, end)


def _open_streams() -> None:
    """Stand-ins for standard streams that whoever started the process has closed.

    The next file to be opened would get a free number, and MLX takes number 0 for a failure.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w"))
