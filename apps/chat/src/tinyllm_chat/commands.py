"""The commands of the REPL: one table, from which /help and completion are made."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tinyllm_chat import transcript
from tinyllm_chat.conversation import Conversation
from tinyllm_chat.errors import ChatError
from tinyllm_chat.session import Session
from tinyllm_chat.summary import summary

# "/etc/passwd is what?" is a question, "/hepl" is a command with a typing error.
_COMMAND = re.compile(r"/([A-Za-z?]+)(?:\s+(.*))?", re.DOTALL)


@dataclass(frozen=True)
class Command:
    """A command of the REPL.

    Attributes:
        name: with its slash.
        argument: what follows it, as /help shows it; empty if nothing does.
        help: what it does.
        run: does it.
        choices: arguments to be offered.
        takes_path: whether the argument is a file, whose name can be completed.
    """

    name: str
    argument: str
    help: str
    run: Callable[[Session, str], None]
    choices: tuple[str, ...] = ()
    takes_path: bool = False


def dispatch(session: Session, line: str) -> bool:
    """Run the command that a line is; False if it is none.

    Raises:
        ChatError: if there is no such command, or it cannot do what it was asked for.
        EOFError: if it was /exit, as Ctrl-D has it.
    """
    match = _COMMAND.fullmatch(line.strip())
    if match is None:
        return False
    name, argument = "/" + match[1].lower(), (match[2] or "").strip()
    command = next((command for command in COMMANDS if command.name == name), None)
    if command is None:
        raise ChatError(f"there is no command {name}: /help lists them")
    if argument and not command.argument:
        raise ChatError(f"{name} takes no argument, got {argument[:60]!r}")
    command.run(session, argument)
    return True


def _help(session: Session, _argument: str) -> None:
    usages = [f"{command.name} {command.argument}".strip() for command in COMMANDS]
    width = max(map(len, usages))
    lines = [
        f"{usage:{width}}  {command.help}" for usage, command in zip(usages, COMMANDS, strict=True)
    ]
    session.terminal.aside("\n".join([*lines, "", KEYS]))


def _system(session: Session, argument: str) -> None:
    if argument:
        session.conversation.system = None if argument == "-" else argument
    system = session.conversation.system
    session.terminal.aside("no system message" if system is None else f"system: {system}")


def _think(session: Session, argument: str) -> None:
    states = {"on": True, "off": False}
    if argument and argument not in states:
        raise ChatError(f"/think: expected on or off, got {argument[:60]!r}")
    if argument:
        session.assistant.think = states[argument]
    think = session.assistant.think
    state = "as the model's template has it" if think is None else "on" if think else "off"
    session.terminal.aside(f"thinking: {state}")


def _regen(session: Session, _argument: str) -> None:
    session.regenerate()


def _reset(session: Session, _argument: str) -> None:
    session.restart(Conversation(session.conversation.system))
    session.terminal.aside("everything is forgotten but the system message")


def _save(session: Session, argument: str) -> None:
    path = _path("/save", argument)
    transcript.save(path, session.conversation, session.assistant.settings.model)
    session.terminal.aside(f"{len(session.conversation.turns)} turns saved to {path}")


def _load(session: Session, argument: str) -> None:
    path = _path("/load", argument)
    session.restart(transcript.load(path))
    session.terminal.aside(f"{len(session.conversation.turns)} turns loaded from {path}")


def _stats(session: Session, _argument: str) -> None:
    assistant, conversation = session.assistant, session.conversation
    lines = [
        *assistant.details(),
        f"turns    {len(conversation.turns)}, {conversation.forgotten} of them left out",
    ]
    if session.last is not None:
        lines.append(f"last     {summary(assistant, session.last)}, seed {session.last.seed}")
    session.terminal.aside("\n".join(lines))


def _model(session: Session, argument: str) -> None:
    if argument:
        session.switch(argument)
    session.terminal.aside(f"model: {session.assistant.settings.model}")


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
    Command("/help", "", "show this", _help),
    Command("/system", "[TEXT]", "set the system message (- removes it), or show it", _system),
    Command("/think", "[on|off]", "let the model think first, or not", _think, ("on", "off")),
    Command("/regen", "", "answer the last question again", _regen),
    Command("/reset", "", "begin a new conversation", _reset),
    Command("/save", "FILE", "write the conversation to a file (JSON)", _save, takes_path=True),
    Command("/load", "FILE", "go on with a saved conversation", _load, takes_path=True),
    Command("/stats", "", "show the model, the cache and the last answer's figures", _stats),
    Command("/model", "[ID]", "go on with another model, or show which one", _model),
    Command("/exit", "", "leave", _exit),
)
