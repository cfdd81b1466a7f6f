"""The context window, which drops the oldest turns of a conversation when it is full."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from tinyllm_qwen.text.chat_prompt import ChatPrompt

from tinyllm_chat.conversation import Conversation, Message
from tinyllm_chat.errors import ChatError

Render = Callable[[list[Message]], ChatPrompt]


@dataclass(frozen=True)
class FittedPrompt:
    """A prompt that fits into the context.

    Attributes:
        tokens: the tokens of the prompt.
        opens_reasoning: True if the answer begins inside the reasoning.
        first_turn: the index of the oldest turn in the prompt. Older turns are dropped.
    """

    tokens: list[int]
    opens_reasoning: bool
    first_turn: int


class ContextWindow:
    """A limit on the tokens of a prompt and its answer together.

    If a conversation leaves no space for an answer, its oldest turns are dropped until it fills at
    most half of the window. Dropping one turn at a time would change the prefix of every prompt,
    and each prompt would be computed without the prefix cache. The system message stays.
    """

    def __init__(self, max_model_len: int, render: Render) -> None:
        """Make a window.

        Args:
            max_model_len: the size of the window, in tokens.
            render: renders messages to a prompt.
        """
        self.max_model_len = max_model_len
        self._render = render

    def fit(self, conversation: Conversation, max_tokens: int) -> FittedPrompt:
        """Return the prompt of a conversation, without dropped turns.

        Args:
            conversation: a conversation that ends with a question.
            max_tokens: the maximum number of tokens of the answer. Up to an eighth of the window is
                reserved for the answer.

        Raises:
            ChatError: if the last question alone does not fit.
        """
        reserved = max(1, min(max_tokens, self.max_model_len // 8))
        prompt = self._prompt(conversation, conversation.dropped_turns)
        if len(prompt.tokens) + reserved <= self.max_model_len:
            return prompt
        last = len(conversation.turns) - 1
        alone = self._prompt(conversation, last)
        if len(alone.tokens) >= self.max_model_len:
            raise ChatError(
                f"prompt: expected fewer than {self.max_model_len:,} tokens (the context, answer "
                f"included), got {len(alone.tokens):,}: shorten it, or use a model with a longer "
                "context"
            )
        # Bisection works because fewer turns give a shorter prompt. It renders the conversation
        # less often than a linear search.
        firsts = range(conversation.dropped_turns + 1, last + 1)
        half = self.max_model_len // 2
        fits = bisect_left(
            firsts, True, key=lambda first: len(self._prompt(conversation, first).tokens) <= half
        )
        return self._prompt(conversation, min(firsts.start + fits, last))

    def _prompt(self, conversation: Conversation, first: int) -> FittedPrompt:
        prompt = self._render(conversation.messages(first))
        return FittedPrompt(prompt.encode(), prompt.opens_reasoning, first)
