"""The conversation on a terminal: read, answer, again."""

import os
import sys

from tinyllm_qwen.parallel.member import Member

from tinyllm_chat import lines
from tinyllm_chat.commands import dispatch
from tinyllm_chat.errors import one_line
from tinyllm_chat.history import SafeHistory, history_path
from tinyllm_chat.reader import Reader
from tinyllm_chat.session import Session, load_assistant
from tinyllm_chat.settings import PICO, Settings
from tinyllm_chat.terminal import Terminal

PICO_NOTICE = (
    "pico, the built-in model, knows one subject: how LLM inference works, and this project. "
    "For a real assistant: chat --model Qwen/Qwen3-0.6B"
)


def run(settings: Settings, terminal: Terminal, member: Member | None = None) -> None:
    """Talk until the user leaves.

    Args:
        settings: what was asked for.
        terminal: where to write.
        member: this process, rank 0 of several that share the model. A launcher gives it no
            terminal: then each line of stdin is a question.

    Raises:
        CheckpointError, HubError, ValueError: as `Assistant.load`.
    """
    assistant = load_assistant(settings, terminal, member)
    if assistant.settings.model == PICO:
        terminal.aside(PICO_NOTICE)
    terminal.aside(f"{assistant.settings.model}: {assistant.label}; /help for help")
    if not sys.stdin.isatty():
        lines.talk(Session(assistant, terminal), sys.stdin)
        return
    reader = Reader(SafeHistory(history_path(os.environ), terminal.notice))
    talk(Session(assistant, terminal), reader)


def talk(session: Session, reader: Reader) -> None:
    """Read and answer until Ctrl-D or /exit; what goes wrong is said, and the talk goes on."""
    while True:
        try:
            line = reader.read()
        except KeyboardInterrupt:
            continue  # the line is dropped, as in a shell
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
            raise  # nobody reads the answers
        except (ValueError, RuntimeError, OSError) as error:
            session.terminal.notice(one_line(error))
