"""Answer one question: `chat --prompt "..."`, or text on stdin."""

import json
from collections.abc import Callable

from tinyllm_cli.messages import UsageError
from tinyllm_qwen.parallel.member import Member

from tinyllm_chat.assistant import load_assistant, show_notices
from tinyllm_chat.conversation import Conversation
from tinyllm_chat.errors import ChatError
from tinyllm_chat.session import Session
from tinyllm_chat.settings import Settings
from tinyllm_chat.summary import record
from tinyllm_chat.terminal.output import Terminal
from tinyllm_chat.terminal.progress import ProgressBar

MAX_STDIN_BYTES = 64_000_000
"""The maximum size of stdin, far beyond any context. Longer input is refused."""

ReadBytes = Callable[[int], bytes]
"""A function that reads up to the given number of bytes, fewer only at the end of the input."""


def run(
    settings: Settings, question: str, terminal: Terminal, member: Member | None = None
) -> None:
    """Answer a question, and print the answer's text or one JSON record to stdout.

    Args:
        settings: the options of the session.
        question: the text of the user.
        terminal: the output.
        member: this process as rank 0 of the group that shares the model; None if this process has
            the whole model.

    Raises:
        ChatError: if the question does not fit into the context.
        ChatError, CheckpointError, HubError, ValueError: as `load_assistant`.
    """
    assistant = load_assistant(settings, terminal, member)
    show_notices(assistant, terminal)
    if not settings.as_json:
        Session(assistant, terminal).ask(question, interruptible=False)
        return
    conversation = Conversation(settings.system)
    conversation.add_question(question)
    with ProgressBar("reading the prompt", terminal) as bar:
        answer = assistant.reply(conversation, lambda _segment: None, on_prefill=bar)
    terminal.out.write(json.dumps(record(assistant, answer)) + "\n")
    terminal.out.flush()


def read_question(prompt: str | None, read_stdin: ReadBytes | None, terminal: Terminal) -> str:
    """Return the text of --prompt, a blank line, and the text of stdin.

    Args:
        prompt: the text of --prompt; None if the option is missing.
        read_stdin: reads stdin; None if stdin is a terminal or belongs to a launcher.
        terminal: the output for a notice.

    Raises:
        UsageError: if both texts are empty.
        ChatError: if stdin has more than 64 MB.
    """
    parts = [] if prompt is None else [prompt]
    if read_stdin is not None:
        parts.append(_decode(read_stdin(MAX_STDIN_BYTES + 1), terminal))
    question = "\n\n".join(part for part in parts if part.strip())
    if not question:
        raise UsageError("the prompt is empty: give --prompt TEXT, or text on stdin")
    return question


def _decode(data: bytes, terminal: Terminal) -> str:
    if len(data) > MAX_STDIN_BYTES:
        raise ChatError(f"stdin: expected at most {MAX_STDIN_BYTES:,} bytes, got more: shorten it")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        terminal.notice(
            f"stdin is not UTF-8 (byte {error.start}): invalid bytes were replaced with U+FFFD"
        )
        text = data.decode(errors="replace")
    return text.removeprefix("\ufeff").rstrip("\r\n")
