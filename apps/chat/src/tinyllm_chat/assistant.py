"""The model of a session, which this process or a server has loaded."""

from tinyllm_qwen.parallel.member import Member

from tinyllm_chat.local.assistant import LocalAssistant
from tinyllm_chat.remote.assistant import RemoteAssistant
from tinyllm_chat.remote.connection import ServerConnection
from tinyllm_chat.settings import Settings
from tinyllm_chat.terminal.output import Terminal
from tinyllm_chat.terminal.progress import ProgressBar

Assistant = LocalAssistant | RemoteAssistant


def load_assistant(
    settings: Settings, terminal: Terminal, member: Member | None = None
) -> Assistant:
    """Load the model, or connect to the server. `show_notices` is then for the caller.

    Args:
        settings: the options of the session.
        terminal: the terminal for progress and notices.
        member: this process as rank 0 of the group that shares the model; None if this process has
            the whole model.

    Raises:
        ChatError, CheckpointError, HubError, ValueError: as `LocalAssistant` and `RemoteAssistant`.
    """
    assistant: Assistant
    if settings.server is not None:
        connection = ServerConnection(settings.server, settings.api_key)
        assistant = RemoteAssistant(settings, connection)
    else:
        with ProgressBar(f"loading {settings.model}", terminal) as bar:
            assistant = LocalAssistant(settings, bar, member)
    return assistant


def show_notices(assistant: Assistant, terminal: Terminal) -> None:
    """Show what the user should know about options and the context.

    No other model may be in memory, because the free memory limits the context.
    """
    for notice in assistant.notices():
        terminal.notice(notice)
