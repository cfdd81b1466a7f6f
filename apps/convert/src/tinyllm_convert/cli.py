"""The command line of `convert`."""

import sys

from tinyllm_cli.messages import INTERRUPTED, notice
from tinyllm_cli.program import exit_on_signals, new_app, run_program

from tinyllm_convert.options import Options

_HELP = """Write a checkpoint for MLX, quantized if --bits or --mode is given.

Reads checkpoints of Qwen2 to Qwen3.8, dense or MoE, as published on Hugging Face, one tensor at
a time. The target appears when it is complete, or never. Exit codes: 0; 2 for usage; 130 after
Ctrl-C; 1 otherwise.
"""

app = new_app()
app.command(name="convert", help=_HELP)(Options)


def main(program: str = "convert") -> int:
    """Run `convert`, under this name in its help, and return its exit code; see `run_program`."""
    return run_program(app, program, run, say=lambda text: notice(text, "convert"))


def run(options: Options) -> int:
    """Convert a checkpoint, and print a report."""
    exit_on_signals()  # removes the partial target
    chat = "tinyllm chat" if sys.argv[0] == "tinyllm convert" else "uv run chat"
    try:
        # Imported here, because --help and --version do not need MLX.
        from tinyllm_convert.conversion import convert_and_report

        convert_and_report(options, chat)
    except KeyboardInterrupt:
        notice("interrupted", "convert")
        return INTERRUPTED
    return 0
