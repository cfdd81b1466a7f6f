"""The command line of `tinyllm`: it finds the named command and runs it."""

import difflib
import sys
from collections.abc import Callable
from importlib.metadata import entry_points, version

from tinyllm_cli.messages import FAILURE, INTERRUPTED, USAGE, drop_output, notice

COMMANDS = {
    "chat": "Chat with a model in the terminal.",
    "serve": "Serve a model through OpenAI's and Anthropic's APIs, with a page for the browser.",
    "models": "List, download, describe and remove models of the Hugging Face cache.",
    "convert": "Convert a Hugging Face checkpoint to a quantized MLX one.",
    "bench": "Measure operations, models, the engine and the server.",
}
"""The commands and their help. Each is an entry point of the group `tinyllm.commands`."""

_GROUP = "tinyllm.commands"
_HELP = """Usage: tinyllm COMMAND [OPTIONS]

Run and measure Qwen models. A small model, pico, is built in.

Commands:
{commands}

Options:
  --version  Print the version.
  --help     Show this message.

`tinyllm COMMAND --help` lists the options of a command.
Begin with: tinyllm chat"""


def main() -> int:
    """Run `tinyllm` and return its exit code: that of the command, or 2 for an unknown command."""
    try:
        return _run(sys.argv[1:])
    except KeyboardInterrupt:  # while a command is imported
        return INTERRUPTED
    except BrokenPipeError:
        drop_output()
        return 0
    except OSError as error:
        notice(str(error))
        drop_output()
        return FAILURE


def _run(words: list[str]) -> int:
    """Run the command that the words name."""
    if not words or words[0] in ("--help", "-h", "help"):
        sys.stdout.write(help_text() + "\n")
        sys.stdout.flush()
        return 0
    name, *rest = words
    if name == "--version":
        sys.stdout.write(f"tinyllm {version('tinyllm-cli')}\n")
        sys.stdout.flush()
        return 0
    if name not in COMMANDS:
        notice(unknown(name))
        return USAGE
    command = find(name)
    if command is None:
        notice(
            f"{name} is not installed: pip install tinyllm-{name}; "
            "with --find-links FOLDER, if tinyllm came from a folder of wheels"
        )
        return FAILURE
    program = f"tinyllm {name}"
    sys.argv = [program, *rest]
    try:
        return command(program)
    except ImportError as error:
        if "shared object file" not in str(error):  # libmlx.so, or a library of CUDA
            raise
        notice(
            f"MLX lacks a library ({error}): install one of its builds, by "
            "pip install 'tinyllm-cli[cpu]' for processors, 'tinyllm-cli[cuda]' for NVIDIA GPUs"
        )
        return FAILURE


def help_text() -> str:
    """Return the help of `tinyllm`. Commands that are not installed are marked."""
    installed = {entry.name for entry in entry_points(group=_GROUP)}
    lines = [
        f"  {name:<9}{text}{'' if name in installed else '  [not installed]'}"
        for name, text in COMMANDS.items()
    ]
    return _HELP.format(commands="\n".join(lines))


def unknown(name: str) -> str:
    """Return the error for an unknown command, with the most similar command."""
    if name.startswith("-"):
        return f"{name[:80]}: options belong after a command (see tinyllm --help)"
    near = difflib.get_close_matches(name.lower(), COMMANDS, n=1)
    hint = f"did you mean `tinyllm {near[0]}`?" if near else "see tinyllm --help"
    return f"{name[:80]!r} is not a command: expected {', '.join(COMMANDS)} ({hint})"


def find(name: str) -> Callable[[str], int] | None:
    """Return the main function of a command, or None if its package is not installed.

    The function takes the name of the program, for its help, and reads its words from `sys.argv`.
    """
    for entry in entry_points(group=_GROUP, name=name):
        command: Callable[[str], int] = entry.load()
        return command
    return None
