"""Completion of commands, their arguments and the names of files."""

from collections.abc import Iterable

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from tinyllm_chat.commands import COMMANDS


class CommandCompleter(Completer):
    """Offers commands at the beginning of the input, and what they take after that."""

    def __init__(self) -> None:
        """Prepare to look for files."""
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        """What the text before the cursor may become."""
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
