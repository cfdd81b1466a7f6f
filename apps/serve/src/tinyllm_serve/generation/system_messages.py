"""System messages in a form that all chat templates accept.

Many templates, such as Qwen3.5's, refuse a system message that is not the first message. Clients
send such messages: instructions in several parts, and reminders in the middle of a conversation.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby, takewhile

from tinyllm_serve.protocol.messages import (
    Message,
    SystemMessage,
    ToolMessage,
    UserMessage,
    text_of,
)


def join_leading(messages: Sequence[Message]) -> list[Message]:
    """Join the system messages before all other messages to one."""
    leading = [*takewhile(_is_system, messages)]
    if len(leading) < 2:
        return [*messages]
    head = SystemMessage(role="system", content=_joined(leading))
    return [head, *messages[len(leading) :]]


def fold_later(messages: Sequence[Message]) -> list[Message]:
    """Move the text of system messages after the first message into a message beside them.

    The text is added to the end of the user message or tool result before it. After an answer it is
    added to the next user message or tool result, or becomes a user message. Earlier messages stay
    as they are, so that the cached prefix of the conversation remains valid. No user message is
    added after a tool result, because templates show the reasoning after the last user message
    alone.
    """
    folded = [*messages[:1]]
    unplaced = ""
    for is_system, group in groupby(messages[1:], _is_system):
        if is_system:
            text = _joined(group)
            if isinstance(last := folded[-1], UserMessage | ToolMessage):
                folded[-1] = _with_text(last, text_of(last.content), text)
            else:
                unplaced = text
            continue
        first, *others = group
        if unplaced:
            match first:
                case UserMessage():
                    first = _with_text(first, unplaced, text_of(first.content))
                case ToolMessage():
                    first = _with_text(first, text_of(first.content), unplaced)
                case _:
                    folded.append(UserMessage(role="user", content=unplaced))
            unplaced = ""
        folded += [first, *others]
    if unplaced:
        folded.append(UserMessage(role="user", content=unplaced))
    return folded


def _is_system(message: Message) -> bool:
    return isinstance(message, SystemMessage)


def _joined(messages: Iterable[Message]) -> str:
    """Join the texts of messages. One join, because there may be 16,000 messages."""
    return _paragraphs(text_of(message.content or "") for message in messages)


def _with_text(message: UserMessage | ToolMessage, *texts: str) -> UserMessage | ToolMessage:
    """Return a message with other texts."""
    return message.model_copy(update={"content": _paragraphs(texts)})


def _paragraphs(texts: Iterable[str]) -> str:
    return "\n\n".join(filter(None, texts))
