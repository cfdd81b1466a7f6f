"""Command line of `bench`."""

import sys
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated

import typer
from tinyllm_cli.messages import INTERRUPTED, notice
from tinyllm_cli.program import exit_on_signals, new_app, run_program, version_option

from tinyllm_bench.command_line import command
from tinyllm_bench.serving.options import EngineOptions, ServeOptions
from tinyllm_bench.settings import Settings

if TYPE_CHECKING:
    from tinyllm_bench.run import Run

app = new_app()


def main(program: str = "bench") -> int:
    """Run `bench`, under this name in its help and errors, and return its exit code."""
    exit_on_signals()  # stops servers and peers, and removes temporary folders
    return run_program(app, program)


def _bench(settings: Settings) -> int:
    """Time every operation of a Qwen model, and the whole model, for every OpSet.

    Weights are random: the cost of an operation does not depend on them. Speeds are shown beside
    the measured ceilings of the machine. Tables go to stdout, progress and messages to stderr.
    Ctrl-C ends a run and shows the results so far. Exit codes: 0; 2 for usage; 130 after Ctrl-C;
    1 otherwise. A command measures one part alone and has its own options.
    """
    from tinyllm_bench.run import Run  # imported here: --help does not need MLX

    return show(Run(settings))


def show(run: "Run") -> int:
    """Measure, and write the report as tables or JSON."""
    from tinyllm_bench.report.report import json_report
    from tinyllm_bench.report.tables import print_report

    run.measure()
    for message in run.report.notices:
        notice(message, "bench")
    if run.report.settings.as_json:
        sys.stdout.write(json_report(run.report) + "\n")
    else:
        print_report(run.report)
    return INTERRUPTED if run.report.interrupted else 0


def _engine(options: EngineOptions) -> int:
    """Time many requests in one engine, alone and beside a long prompt.

    Numbers of requests take turns in each round, so that a machine that slows down slows all of
    them. Tokens per second are medians over the rounds.
    """
    from tinyllm_bench.serving.engine import run_engine

    return run_engine(options)


def _serve(options: ServeOptions) -> int:
    """Send requests at random times to a server, and time its answers.

    Starts `serve` with the model, and with --peers other servers after it, each with the same
    loads. Answers are greedy. Prompts of random words share a prefix. Exit codes: as of bench, and
    1 if a server did not start or answered no request.
    """
    from tinyllm_bench.serving.run import run_serve

    return run_serve(options)


_VERSION = Annotated[bool, version_option("bench")]
_MORE = (
    Parameter("context_", Parameter.KEYWORD_ONLY, annotation=typer.Context),
    Parameter("version", Parameter.KEYWORD_ONLY, default=False, annotation=_VERSION),
)

app.callback(invoke_without_command=True)(command(Settings, _bench, {}, (), *_MORE))
app.command("ops", help="Time every operation, for every OpSet.")(
    command(Settings, _bench, {"only": "ops"}, ("peers", "peer", "decode_tokens"))
)
app.command("model", help="Time prefill and decoding of the whole model, for OpSets and peers.")(
    command(Settings, _bench, {"only": "model"}, ("op", "batch"))
)
app.command("engine")(command(EngineOptions, _engine))
app.command("serve")(command(ServeOptions, _serve))
