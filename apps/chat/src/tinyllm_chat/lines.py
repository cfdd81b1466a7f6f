"""The conversation of a program that has no terminal: a line is a question."""

from typing import TextIO

from tinyllm_chat.commands import dispatch
from tinyllm_chat.errors import one_line
from tinyllm_chat.session import Session


def talk(session: Session, lines: TextIO) -> None:
    """Answer line by line until the last one, or /exit; what goes wrong is said.

    Raises:
        KeyboardInterrupt: on Ctrl-C: there is nobody to go on with.
        RuntimeError: if a computation fails: then the other processes cannot go on either.
    """
    for line in lines:
        try:
            if line.strip() and not dispatch(session, line):
                session.ask(line.strip(), interruptible=False)
        except EOFError:
            return
        except BrokenPipeError:
            raise  # nobody reads the answers
        except (ValueError, OSError) as error:
            session.terminal.notice(one_line(error))
