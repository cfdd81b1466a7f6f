"""The prompt of a conversation, without its oldest turns if the context is full."""

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


def fit_prompt(
    conversation: Conversation, render: Render, max_model_len: int, max_tokens: int
) -> FittedPrompt:
    """Return the prompt of a conversation, without dropped turns.

    If a conversation leaves no space for an answer, its oldest turns are dropped until it fills at
    most half of the context. Dropping one turn at a time would change the prefix of every prompt,
    and each prompt would be computed without the prefix cache. The system message stays.

    Args:
        conversation: a conversation that ends with a question.
        render: renders messages to a prompt.
        max_model_len: the most tokens of the prompt and its answer together.
        max_tokens: the maximum number of tokens of the answer. Up to an eighth of the context is
            reserved for the answer.

    Raises:
        ChatError: if the last question alone does not fit.
    """

    def prompt_from(first: int) -> FittedPrompt:
        prompt = render(conversation.messages(first))
        return FittedPrompt(prompt.encode(), prompt.opens_reasoning, first)

    reserved = max(1, min(max_tokens, max_model_len // 8))
    prompt = prompt_from(conversation.dropped_turns)
    if len(prompt.tokens) + reserved <= max_model_len:
        return prompt
    last = len(conversation.turns) - 1
    alone = prompt_from(last)
    if len(alone.tokens) >= max_model_len:
        raise ChatError(
            f"prompt: expected fewer than {max_model_len:,} tokens (the context, answer included), "
            f"got {len(alone.tokens):,}: shorten it, or use a model with a longer context"
        )
    # Bisection works because fewer turns give a shorter prompt. It renders the conversation less
    # often than a linear search.
    firsts = range(conversation.dropped_turns + 1, last + 1)
    half = max_model_len // 2
    fits = bisect_left(firsts, True, key=lambda first: len(prompt_from(first).tokens) <= half)
    return prompt_from(min(firsts.start + fits, last))
