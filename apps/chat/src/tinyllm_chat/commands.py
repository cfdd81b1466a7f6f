"""The slash commands of the REPL: a table that serves dispatch, /help and completion."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from tinyllm_chat import transcript
from tinyllm_chat.conversation import Conversation
from tinyllm_chat.errors import ChatError
from tinyllm_chat.session import Session
from tinyllm_chat.summary import summary
from tinyllm_chat.thinking import STATES

# "/etc/passwd is what?" is a question, "/hepl" is a command with a typing error.
_COMMAND = re.compile(r"/([A-Za-z?]+)(?:\s+(.*))?", re.DOTALL)


@dataclass(frozen=True)
class Command:
    """A command of the REPL.

    Attributes:
        name: the name, with its slash.
        argument: the placeholder of the argument in /help; empty if there is no argument.
        help: the description in /help.
        run: the implementation; called with the session and the argument.
        choices: arguments that completion offers.
        takes_path: True if the argument is a path, which completion can complete.
    """

    name: str
    argument: str
    help: str
    run: Callable[[Session, str], None]
    choices: tuple[str, ...] = ()
    takes_path: bool = False


def dispatch(session: Session, line: str) -> bool:
    """Run a line that is a command; return False for any other line.

    Raises:
        ChatError: if the command does not exist or fails.
        EOFError: if the command is /exit, as for Ctrl-D.
    """
    match = _COMMAND.fullmatch(line.strip())
    if match is None:
        return False
    name, argument = "/" + match[1].lower(), (match[2] or "").strip()
    command = next((command for command in COMMANDS if command.name == name), None)
    if command is None:
        raise ChatError(f"there is no command {name}: /help lists the commands")
    if argument and not command.argument:
        raise ChatError(f"{name}: expected no argument, got {argument[:60]!r}")
    command.run(session, argument)
    return True


class CommandCompleter(Completer):
    """Completes commands, their choices and paths."""

    def __init__(self) -> None:
        """Prepare the completion of paths."""
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        """Yield the completions of the text before the cursor."""
        name, space, argument = document.text_before_cursor.partition(" ")
        if not name.startswith("/"):
            return
        if not space:
            for command in COMMANDS:
                if command.name.startswith(name):
                    yield Completion(command.name, -len(name), display_meta=command.help)
            return
        for command in (command for command in COMMANDS if command.name == name):
            for choice in command.choices:
                if choice.startswith(argument):
                    yield Completion(choice, -len(argument))
            if command.takes_path:
                yield from self._paths.get_completions(Document(argument), event)


def _help(session: Session, _argument: str) -> None:
    usages = [f"{command.name} {command.argument}".strip() for command in COMMANDS]
    width = max(map(len, usages))
    lines = [
        f"{usage:{width}}  {command.help}" for usage, command in zip(usages, COMMANDS, strict=True)
    ]
    session.terminal.info("\n".join([*lines, "", KEYS]))


def _system(session: Session, argument: str) -> None:
    if argument:
        session.conversation.system = None if argument == "-" else argument
    system = session.conversation.system
    session.terminal.info("no system message" if system is None else f"system: {system}")


def _think(session: Session, argument: str) -> None:
    if argument and argument not in STATES:
        raise ChatError(f"/think: expected one of {', '.join(STATES)}, got {argument[:60]!r}")
    if argument:
        session.assistant.think(argument)
    state = session.assistant.thinking or "the chat template's default"
    session.terminal.info(f"thinking: {state}")


def _regen(session: Session, _argument: str) -> None:
    session.regenerate()


def _reset(session: Session, _argument: str) -> None:
    session.start(Conversation(session.conversation.system))
    session.terminal.info("new conversation; the system message is kept")


def _save(session: Session, argument: str) -> None:
    path = _path("/save", argument)
    transcript.save(path, session.conversation, session.assistant.settings.model)
    session.terminal.info(f"saved to {path}, turns: {len(session.conversation.turns)}")


def _load(session: Session, argument: str) -> None:
    path = _path("/load", argument)
    session.start(transcript.load(path))
    session.terminal.info(f"loaded from {path}, turns: {len(session.conversation.turns)}")


def _stats(session: Session, _argument: str) -> None:
    assistant, conversation, answer = session.assistant, session.conversation, session.last_answer
    lines = [
        *assistant.stats_lines(),
        f"turns    {len(conversation.turns)}, {conversation.dropped_turns} of them left out",
    ]
    if answer is not None:
        lines.append(f"last     {summary(assistant, answer)}, seed {answer.seed}")
    session.terminal.info("\n".join(lines))


def _model(session: Session, argument: str) -> None:
    if argument:
        session.switch_model(argument)
    session.terminal.info(f"model: {session.assistant.settings.model}")


def _exit(_session: Session, _argument: str) -> None:
    raise EOFError


def _path(command: str, argument: str) -> Path:
    if not argument:
        raise ChatError(f"{command}: expected the name of a file")
    return Path(argument)


KEYS = (
    "Enter sends; Esc Enter (or Alt+Enter) begins a new line; Tab completes; Ctrl-C stops an "
    "answer; Ctrl-D leaves."
)
COMMANDS = (
    Command("/help", "", "show this help", _help),
    Command("/system", "[TEXT]", "set the system message (- removes it), or show it", _system),
    Command(
        "/think",
        f"[{'|'.join(STATES)}]",
        "turn thinking on or off, choose its effort (Qwen3.8), or show its state",
        _think,
        STATES,
    ),
    Command("/regen", "", "answer the last question again", _regen),
    Command("/reset", "", "begin a new conversation", _reset),
    Command("/save", "FILE", "save the conversation to a JSON file", _save, takes_path=True),
    Command("/load", "FILE", "continue a saved conversation", _load, takes_path=True),
    Command("/stats", "", "show the model, the cache and statistics of the last answer", _stats),
    Command("/model", "[ID]", "continue with another model, or show the current one", _model),
    Command("/exit", "", "leave", _exit),
)
