"""The command line: `bench`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tinyllm_bench.batching_command import batching
from tinyllm_bench.closed_pipe import closed_pipe_is_no_error
from tinyllm_bench.errors import UsageError, one_line
from tinyllm_bench.predict_command import predicting
from tinyllm_bench.roofline_command import roofing
from tinyllm_bench.serving_command import serving
from tinyllm_bench.settings import Settings
from tinyllm_bench.soak_command import soaking

if TYPE_CHECKING:
    from tinyllm_bench.report import Report

# `--predict` as well, since that is how it was first asked for.
_COMMANDS = {
    "batch": batching,
    "predict": predicting,
    "--predict": predicting,
    "roofline": roofing,
    "serve": serving,
    "soak": soaking,
}

USAGE, FAILURE, INTERRUPTED = 2, 1, 130

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def main() -> int:
    """Run `bench` and give its exit code: 0, 2 for usage, 130 after Ctrl-C, 1 otherwise.

    A reader that closes the pipe early has what it wanted: 0.
    """
    try:
        # No subcommands to typer: the options of the other measurements stay as they are.
        name = sys.argv[1] if len(sys.argv) > 1 else ""
        if name in _COMMANDS:
            command, options = _COMMANDS[name], sys.argv[2:]
            return int(
                command(options, prog_name=f"bench {name.lstrip('-')}", standalone_mode=False) or 0
            )
        return int(app(prog_name="bench", standalone_mode=False) or 0)
    except typer.TyperException as error:
        _notice(f"{' '.join(error.format_message().split())} (see bench --help)")
        return USAGE
    except UsageError as error:
        _notice(one_line(error))
        return USAGE
    except KeyboardInterrupt:  # before there was anything to show
        return INTERRUPTED
    except (ValueError, RuntimeError, OSError) as error:
        _notice(one_line(error))
        return FAILURE


@app.command()
def bench(
    shape: Annotated[
        str,
        typer.Option(metavar="NAME", help="pico, qwen3-0.6b, qwen3-4b or qwen2.5-0.5b."),
    ] = "pico",
    model: Annotated[
        str | None,
        typer.Option(metavar="ID", help="A checkpoint instead: a folder, owner/name, or pico."),
    ] = None,
    bits: Annotated[
        int | None,
        typer.Option(metavar="N", help="Of random weights: 2-6, 8, 16 or 32. [default: 4]"),
    ] = None,
    group_size: Annotated[
        int | None, typer.Option(metavar="N", help="Numbers that share a scale. [default: 64]")
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="affine, mxfp4, mxfp8 or nvfp4. [default: affine]"),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            metavar="auto|float32|float16|bfloat16",
            help="Of the arithmetic; auto is float32 beside packed weights on a CPU.",
        ),
    ] = "auto",
    ops: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this OpSet; may be repeated."),
    ] = None,
    op: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Only this operation or layer, no model; may be repeated."
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="ops|model", help="Leave the other half out.")
    ] = None,
    prompt_tokens: Annotated[
        int, typer.Option(metavar="N", help="Length of the prompt that prefill reads.")
    ] = 128,
    context: Annotated[
        int | None,
        typer.Option(metavar="N", help="Tokens before decoding. [default: as the prompt]"),
    ] = None,
    decode_tokens: Annotated[
        int, typer.Option(metavar="N", help="Tokens of one sample of decoding at most.")
    ] = 32,
    batch: Annotated[
        int, typer.Option(metavar="N", help="Rows of the batch that operations are timed with.")
    ] = 8,
    seconds: Annotated[
        float,
        typer.Option(
            metavar="S",
            help="Time budget of each operation, size and OpSet; ten times for a model.",
        ),
    ] = 0.5,
    peers: Annotated[
        bool, typer.Option("--peers", help="Measure mlx-lm and llama.cpp, where installed.")
    ] = False,
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this peer, mlx-lm or llama.cpp; may be repeated."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of tables.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw an image: .png, .svg or .pdf.")
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> int:
    """Time every operation of a Qwen model, and the whole model, for every OpSet there is.

    Weights are random: what an operation costs does not depend on them. Speeds stand beside what
    the machine can do, which is measured too. Tables go to stdout, progress and notices to
    stderr. Ctrl-C ends a run and shows what was measured by then. Exit codes: 0; 2 for usage; 130
    after Ctrl-C; 1 otherwise. `bench batch`, `bench serve` and `bench soak` measure engine and
    server; `bench roofline` shows kernels below what the machine can do; `bench predict` says what
    several machines would bring.
    """
    settings = Settings(
        shape=shape,
        model=model,
        bits=bits,
        group_size=group_size,
        mode=mode,
        dtype=dtype,
        ops=tuple(ops or ()),
        op=tuple(op or ()),
        only=only,
        prompt_tokens=prompt_tokens,
        context=context,
        decode_tokens=decode_tokens,
        batch=batch,
        seconds=seconds,
        peers=peers,
        peer=tuple(peer or ()),
        as_json=as_json,
        plot=plot,
    )
    with closed_pipe_is_no_error():
        if version:
            _print_version()
            return 0
        return _run(settings)
    return 0


def _print_version() -> None:
    from importlib.metadata import version  # 20 ms, for this option alone

    typer.echo(f"bench {version('tinyllm-bench')}")


def _run(settings: Settings) -> int:
    """Measure, and show what there is to show."""
    from tinyllm_bench.bench import Bench  # with MLX and NumPy, which --help can do without
    from tinyllm_bench.plot import check_plot
    from tinyllm_bench.progress import ProgressLine

    if settings.plot is not None:
        check_plot(settings.plot)
    with ProgressLine() as progress:
        progress.begin("making the weights")
        run = Bench(settings)
        run.run(progress)
    for notice in run.report.notices:
        _notice(notice)
    _show(run.report)
    return INTERRUPTED if run.report.interrupted else 0


def _show(report: "Report") -> None:
    """Write the report in the forms that were asked for."""
    from tinyllm_bench.json_report import json_report
    from tinyllm_bench.plot import draw_plot
    from tinyllm_bench.tables import print_report

    if report.settings.as_json:
        sys.stdout.write(json_report(report) + "\n")
    else:
        print_report(report)
    sys.stdout.flush()
    if report.settings.plot is not None and report.results:
        draw_plot(report, report.settings.plot)
        _notice(f"wrote {report.settings.plot}")


def _notice(text: str) -> None:
    """A line on stderr."""
    sys.stderr.write(f"bench: {text}\n")
    sys.stderr.flush()
