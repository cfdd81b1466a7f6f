"""The command line of `convert`."""

import os
import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from tinyllm_convert.errors import UsageError, one_line

USAGE, FAILURE, INTERRUPTED = 2, 1, 130

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def main(program: str = "convert") -> int:
    """Run `convert` and return its exit code: 0, 2 for usage, 130 after Ctrl-C, 1 otherwise.

    Args:
        program: the name of the command in its help.
    """
    _replace_closed_streams()
    try:
        return int(app(prog_name=program, standalone_mode=False) or 0)
    except typer.TyperException as error:
        _notice(f"{' '.join(error.format_message().split())} (see {program} --help)")
        return USAGE
    except UsageError as error:
        _notice(f"{one_line(error)} (see {program} --help)")
        return USAGE
    except OSError as error:  # stdout is full, for example
        _notice(one_line(error))
        _drop_output()
        return FAILURE
    except SystemExit as error:
        # typer turns the error of a closed pipe into this one, with code 1.
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        return 0


@app.command()
def convert(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="SOURCE",
            help="An unquantized checkpoint: a folder, or owner/name on the Hugging Face Hub.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Argument(metavar="TARGET", help="The new folder; an existing one must be empty."),
    ] = None,
    bits: Annotated[
        int | None,
        typer.Option("--bits", "--q-bits", metavar="2|3|4|5|6|8", help="Bits of a code."),
    ] = None,
    group_size: Annotated[
        int | None,
        typer.Option(
            "--group-size",
            "--q-group-size",
            metavar="32|64|128",
            help="The number of weights that share a scale.  [default: 64]",
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            "--q-mode",
            metavar="affine|mxfp4|mxfp8|nvfp4",
            help="affine is integer codes; the others are floating-point codes, which fix --bits "
            "and --group-size.  [default: affine]",
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="float32|float16|bfloat16",
            help="The dtype of unquantized tensors.  [default: the source's own]",
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Leave matrices unquantized: lm_head, '*.v_proj', ...; may be repeated.",
        ),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(metavar="REV", help="Branch, tag or commit on the Hub.")
    ] = None,
    shard_size: Annotated[
        float, typer.Option(metavar="GB", help="The largest size of a file.")
    ] = 5.0,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> int:
    """Write a checkpoint for MLX, quantized if --bits or --mode is given.

    Reads checkpoints of Qwen2 to Qwen3.6, dense or MoE, as published on Hugging Face, one tensor at
    a time. The target appears when it is complete, or never. Exit codes: 0; 2 for usage; 130 after
    Ctrl-C; 1 otherwise.
    """
    if version:
        from importlib.metadata import version as version_of  # imported here: takes 20 ms

        typer.echo(f"convert {version_of('tinyllm-convert')}")
        return 0
    if source is None or target is None:
        raise UsageError("expected a SOURCE and a TARGET")
    _exit_on_signals()
    try:
        # Imported here, because --help and --version do not need MLX.
        from tinyllm_convert.options import Options
        from tinyllm_convert.run import run

        options = Options(
            bits=bits,
            group_size=group_size,
            mode=mode,
            dtype=dtype,
            skip=tuple(skip or ()),
            shard_size=shard_size,
        )
        chat = "tinyllm chat" if sys.argv[0] == "tinyllm convert" else "uv run chat"
        run(source, target, revision, options, chat)
    except UsageError:
        raise  # a ValueError, which `main` reports with the name of the command
    except KeyboardInterrupt:
        _notice("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the report has closed the pipe
        _drop_output()
    except (ValueError, RuntimeError, OSError, MemoryError) as error:
        _notice(one_line(error))
        return FAILURE
    return 0


def _drop_output() -> None:
    """Write to the null device. Python flushes both streams at exit, which would raise again."""
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _notice(text: str) -> None:
    """Write a line to stderr."""
    typer.echo(f"convert: {text}", err=True)


def _exit_on_signals() -> None:
    """Raise SystemExit on SIGTERM and SIGHUP, so that the partial target is removed."""

    def on_signal(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
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
