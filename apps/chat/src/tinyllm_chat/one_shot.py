"""One question, one answer."""

import json

from tinyllm_qwen.parallel.member import Member

from tinyllm_chat.conversation import Conversation
from tinyllm_chat.progress import ProgressBar
from tinyllm_chat.session import Session, load_assistant
from tinyllm_chat.settings import Settings
from tinyllm_chat.summary import record
from tinyllm_chat.terminal import Terminal


def run(
    settings: Settings,
    question: str,
    terminal: Terminal,
    *,
    as_json: bool,
    member: Member | None = None,
) -> None:
    """Answer a question: on stdout the answer alone, or one record of JSON.

    Args:
        settings: what was asked for.
        question: what to answer.
        terminal: where to write.
        as_json: whether to print a record.
        member: this process, rank 0 of several that share the model.

    Raises:
        ChatError: if the question does not fit into the context.
        CheckpointError, HubError, ValueError: as `Assistant.load`.
    """
    assistant = load_assistant(settings, terminal, member)
    if not as_json:
        Session(assistant, terminal).ask(question, interruptible=False)
        return
    conversation = Conversation(settings.system)
    conversation.ask(question)
    with ProgressBar("reading the prompt", terminal) as bar:
        answer = assistant.reply(conversation, lambda _segment: None, on_prefill=bar)
    terminal.out.write(json.dumps(record(assistant, answer)) + "\n")
    terminal.out.flush()
