"""The command line of `convert`."""

import signal
import sys
from types import FrameType

from tinyllm_cli.messages import INTERRUPTED, notice
from tinyllm_cli.program import new_app, run_program

from tinyllm_convert.options import Options

_HELP = """Write a checkpoint for MLX, quantized if --bits or --mode is given.

Reads checkpoints of Qwen2 to Qwen3.6, dense or MoE, as published on Hugging Face, one tensor at
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
    _exit_on_signals()
    chat = "tinyllm chat" if sys.argv[0] == "tinyllm convert" else "uv run chat"
    try:
        # Imported here, because --help and --version do not need MLX.
        from tinyllm_convert.conversion import convert_and_report

        convert_and_report(options, chat)
    except KeyboardInterrupt:
        notice("interrupted", "convert")
        return INTERRUPTED
    return 0


def _exit_on_signals() -> None:
    """Raise SystemExit on SIGTERM and SIGHUP, so that the partial target is removed."""

    def on_signal(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, on_signal)
