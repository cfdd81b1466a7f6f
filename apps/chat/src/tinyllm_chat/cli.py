"""The command line of `chat`."""

import os
import select
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from tinyllm_cli.messages import UsageError
from tinyllm_cli.program import new_app, run_program

from tinyllm_chat.settings import Settings
from tinyllm_chat.terminal.output import Terminal

if TYPE_CHECKING:
    from tinyllm_chat.one_shot import ReadBytes

STDIN_PATIENCE = 2.0
"""Seconds to wait for text on stdin before a notice says that `chat` is waiting."""

_HELP = """Chat with a Qwen model; a small one, pico, is built in.

On a terminal, hold a conversation (/help lists its commands). With --prompt, or with text on
stdin, answer once: the text of stdin follows the prompt after a blank line. Only answers go to
stdout; thinking, statistics and notices go to stderr. Sampling options default to the
checkpoint's generation_config.json. Exit codes: 0; 2 for usage; 130 after Ctrl-C; 1 otherwise.
"""

app = new_app()
app.command(name="chat", help=_HELP)(Settings)


def main(program: str = "chat") -> int:
    """Run `chat`, under this name in its help, and return its exit code; see `run_program`."""
    return run_program(app, program, run, say=lambda text: Terminal.standard().notice(text))


def run(settings: Settings) -> None:
    """Answer once, hold a conversation, or execute the commands of rank 0."""
    # Imported here, because --help and usage errors do not need MLX.
    from tinyllm_qwen.parallel.member import is_launched

    from tinyllm_chat import one_shot
    from tinyllm_chat.local import ranks

    if settings.server is not None and settings.api_key is None:
        # Not read by Typer: without --server the option is wrong, and the variable is ignored,
        # because a shell may export it for `serve`.
        settings = replace(settings, api_key=os.environ.get("TINYLLM_API_KEY") or None)
    terminal = Terminal.standard()
    with ranks.join_ranks(settings, terminal) as member:
        if member is not None and not member.is_driver:
            ranks.run_worker(settings, terminal, member)
            return
        # A launcher never closes its pipe. Each line of the pipe is one question.
        read_stdin = None if is_launched() else _stdin_reader(terminal)
        if settings.prompt is not None or read_stdin is not None:
            question = one_shot.read_question(settings.prompt, read_stdin, terminal)
            one_shot.run(settings, question, terminal, member)
            return
        if settings.as_json:
            raise UsageError("--json: expected --prompt TEXT or text on stdin as well")
        # Imported here, because a single question does not need prompt_toolkit.
        from tinyllm_chat import repl

        repl.run(settings, terminal, member)


def _stdin_reader(terminal: Terminal) -> "ReadBytes | None":
    """Return the `read` of stdin, or None if stdin is a terminal.

    Some scripts leave stdin open and write nothing. After `STDIN_PATIENCE` seconds a notice says
    that `chat` is waiting.
    """
    if sys.stdin.isatty():
        return None
    if not select.select([sys.stdin], [], [], STDIN_PATIENCE)[0]:
        terminal.notice("waiting for text on stdin: close it, or use </dev/null for none")
    return sys.stdin.buffer.read
