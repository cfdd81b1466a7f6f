"""The conversation on a terminal, or on lines of stdin: read a question, answer it, repeat."""

import os
import sys
from typing import TextIO

from tinyllm_cli.messages import one_line
from tinyllm_cli.program import exit_on_signals
from tinyllm_qwen.checkpoint.hub import BUILT_IN
from tinyllm_qwen.parallel.member import Member

from tinyllm_chat.assistant import load_assistant, show_notices
from tinyllm_chat.commands import CommandCompleter, dispatch
from tinyllm_chat.session import Session
from tinyllm_chat.settings import Settings
from tinyllm_chat.terminal.history import open_history
from tinyllm_chat.terminal.modes import keep_modes
from tinyllm_chat.terminal.output import Terminal
from tinyllm_chat.terminal.prompt import PromptReader

PICO_NOTICE = (
    "pico, the built-in model, knows one subject: how LLM inference works, and this project. "
    "For a real assistant, type /model Qwen/Qwen3-0.6B, which downloads it."
)


def run(settings: Settings, terminal: Terminal, member: Member | None = None) -> None:
    """Hold a conversation until the user leaves.

    Args:
        settings: the options of the session.
        terminal: the output.
        member: this process as rank 0 of the group that shares the model; None if this process has
            the whole model. A launcher connects stdin to a pipe: then each line is a question.

    Raises:
        ChatError, CheckpointError, HubError, ValueError: as `load_assistant`.
    """
    assistant = load_assistant(settings, terminal, member)
    show_notices(assistant, terminal)
    if assistant.settings.model == BUILT_IN:
        terminal.info(PICO_NOTICE)
    terminal.info(f"{assistant.settings.model}: {assistant.description}; /help for help")
    session = Session(assistant, terminal)
    if sys.stdin.isatty():
        exit_on_signals()
        history = open_history(os.environ, terminal.notice)
        restore = keep_modes()
        try:
            answer_inputs(session, PromptReader(history, CommandCompleter()))
        finally:  # a signal may interrupt prompt_toolkit while it sets or restores them
            restore()
    else:
        # Invalid UTF-8 becomes U+FFFD, as in `one_shot`.
        with open(sys.stdin.fileno(), encoding="utf-8", errors="replace", closefd=False) as lines:
            answer_lines(session, lines)


def answer_inputs(session: Session, reader: PromptReader) -> None:
    """Answer what the user types, until Ctrl-D or /exit. Errors become notices."""
    while True:
        try:
            line = reader.read()
        except KeyboardInterrupt:
            session.terminal.info("Ctrl-D or /exit leaves")  # Ctrl-C discards the line, as a shell
            continue
        except EOFError:
            return
        try:
            if line.strip() and not dispatch(session, line):
                session.ask(line)
        except EOFError:
            return
        except KeyboardInterrupt:
            session.terminal.notice("stopped")
        except BrokenPipeError:
            raise  # the reader of the answers has left
        except (ValueError, RuntimeError, OSError) as error:
            session.terminal.notice(one_line(error))


def answer_lines(session: Session, lines: TextIO) -> None:
    """Answer each line of a stream, until its end or /exit. Most errors become notices.

    Raises:
        KeyboardInterrupt: on Ctrl-C, since there is no prompt to return to.
        RuntimeError: if a computation fails, since the other ranks cannot continue either.
    """
    for line in lines:
        try:
            if line.strip() and not dispatch(session, line):
                session.ask(line.strip(), interruptible=False)
        except EOFError:
            return
        except BrokenPipeError:
            raise  # the reader of the answers has left
        except (ValueError, OSError) as error:
            session.terminal.notice(one_line(error))
