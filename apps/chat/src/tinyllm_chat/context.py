"""The window that a conversation has to fit into."""

from bisect import bisect_left
from collections.abc import Callable

from tinyllm_chat.conversation import Conversation, Message
from tinyllm_chat.errors import ChatError

Encode = Callable[[list[Message]], list[int]]


class Context:
    """A bound on the tokens of a prompt and its answer together.

    A conversation that leaves no room for an answer loses its oldest turns, down to half of the
    window: turn by turn it would lose one at each question, and every prompt would have to be
    computed anew. The system message stays.
    """

    def __init__(self, size: int, encode: Encode) -> None:
        """Make a window.

        Args:
            size: of the window, in tokens.
            encode: from messages to the tokens of their prompt.
        """
        self.size = size
        self._encode = encode

    def fit(self, conversation: Conversation, max_tokens: int) -> list[int]:
        """The tokens of the prompt; what does not fit is counted in `conversation.forgotten`.

        Args:
            conversation: it ends with a question.
            max_tokens: the longest answer; up to an eighth of the window is kept free for it.

        Raises:
            ChatError: if the last question does not fit by itself.
        """
        room = max(1, min(max_tokens, self.size // 8))
        prompt = self._encode(conversation.messages())
        if len(prompt) + room <= self.size:
            return prompt
        last = len(conversation.turns) - 1
        alone = self._encode(conversation.messages(last))
        if len(alone) >= self.size:
            raise ChatError(
                f"the prompt has {len(alone):,} tokens, and the context takes {self.size:,}, "
                "answer included: shorten it, or use a model with a longer context"
            )
        # The fewer turns, the shorter the prompt: a few renderings find the first that fits,
        # where a long question makes each of them slow.
        firsts = range(conversation.forgotten + 1, last + 1)
        fits = bisect_left(
            firsts,
            True,
            key=lambda first: len(self._encode(conversation.messages(first))) <= self.size // 2,
        )
        conversation.forgotten = min(firsts.start + fits, last)
        return self._encode(conversation.messages())
