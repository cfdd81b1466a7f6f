"""One question, one answer."""

import json
from typing import BinaryIO

from tinyllm_chat.conversation import Conversation
from tinyllm_chat.errors import ChatError, UsageError
from tinyllm_chat.progress import ProgressBar
from tinyllm_chat.session import Session, load_assistant
from tinyllm_chat.settings import Settings
from tinyllm_chat.summary import record
from tinyllm_chat.terminal import Terminal

MAX_BYTES = 64_000_000
"""Of stdin: far beyond any context, and little enough to be read before it is refused."""


def run(settings: Settings, question: str, terminal: Terminal, *, as_json: bool) -> None:
    """Answer a question: on stdout the answer alone, or one record of JSON.

    Raises:
        ChatError: if the question does not fit into the context.
        CheckpointError, HubError, ValueError: as `Assistant.load`.
    """
    assistant = load_assistant(settings, terminal)
    if not as_json:
        Session(assistant, terminal).ask(question, interruptible=False)
        return
    conversation = Conversation(settings.system)
    conversation.ask(question)
    with ProgressBar("reading the prompt", terminal) as bar:
        answer = assistant.reply(conversation, lambda _segment: None, on_prefill=bar)
    terminal.out.write(json.dumps(record(assistant, answer)) + "\n")
    terminal.out.flush()


def read_question(argument: str | None, stdin: BinaryIO | None, terminal: Terminal) -> str:
    """The question of the command line and of stdin; of both, stdin's text after a blank line.

    Args:
        argument: what --prompt says, if it is there.
        stdin: None where it is a terminal, or closed.
        terminal: for a notice.

    Raises:
        UsageError: if there is nothing but space.
        ChatError: if stdin has more than 64 MB.
    """
    parts = [] if argument is None else [argument]
    if stdin is not None:
        parts.append(_read(stdin, terminal))
    question = "\n\n".join(part for part in parts if part.strip())
    if not question:
        raise UsageError("the prompt is empty: give --prompt TEXT, or text on stdin")
    return question


def _read(stdin: BinaryIO, terminal: Terminal) -> str:
    data = stdin.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ChatError(f"stdin: expected at most {MAX_BYTES:,} bytes, got more: shorten it")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        terminal.notice(
            f"stdin is not UTF-8 (byte {error.start}): what is not was replaced with U+FFFD"
        )
        text = data.decode(errors="replace")
    return text.removeprefix("\ufeff").rstrip("\r\n")
