"""The context window, which drops the oldest turns of a conversation when it is full."""

from bisect import bisect_left
from collections.abc import Callable

from tinyllm_chat.conversation import Conversation, Message
from tinyllm_chat.errors import ChatError

Encode = Callable[[list[Message]], list[int]]


class ContextWindow:
    """A limit on the tokens of a prompt and its answer together.

    If a conversation leaves no space for an answer, its oldest turns are dropped until it fills at
    most half of the window. Dropping one turn at a time would change the prefix of every prompt,
    and each prompt would be computed without the prefix cache. The system message stays.
    """

    def __init__(self, max_model_len: int, encode: Encode) -> None:
        """Make a window.

        Args:
            max_model_len: the size of the window, in tokens.
            encode: renders messages to the tokens of a prompt.
        """
        self.max_model_len = max_model_len
        self._encode = encode

    def fit(self, conversation: Conversation, max_tokens: int) -> list[int]:
        """Return the tokens of the prompt, and update `conversation.dropped_turns`.

        Args:
            conversation: a conversation that ends with a question.
            max_tokens: the maximum number of tokens of the answer. Up to an eighth of the window is
                reserved for the answer.

        Raises:
            ChatError: if the last question alone does not fit.
        """
        reserved = max(1, min(max_tokens, self.max_model_len // 8))
        prompt = self._encode(conversation.messages())
        if len(prompt) + reserved <= self.max_model_len:
            return prompt
        last = len(conversation.turns) - 1
        alone = self._encode(conversation.messages(last))
        if len(alone) >= self.max_model_len:
            raise ChatError(
                f"prompt: expected fewer than {self.max_model_len:,} tokens (the context, answer "
                f"included), got {len(alone):,}: shorten it, or use a model with a longer context"
            )
        # Bisection works because fewer turns give a shorter prompt. It renders the conversation
        # less often than a linear search.
        firsts = range(conversation.dropped_turns + 1, last + 1)
        fits = bisect_left(
            firsts,
            True,
            key=lambda first: (
                len(self._encode(conversation.messages(first))) <= self.max_model_len // 2
            ),
        )
        conversation.dropped_turns = min(firsts.start + fits, last)
        return self._encode(conversation.messages())
