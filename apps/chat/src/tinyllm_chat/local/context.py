"""The prompt of a conversation, without its oldest turns if the context is full."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
from tinyllm_qwen.free_memory import cache_bytes, free_memory
from tinyllm_qwen.language_model import LanguageModel
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


_GROWTH_PART = 4
"""A cache that grows has capacity for one more token in so many: see `DenseCache`."""


def most_tokens(model: LanguageModel, kv_bits: int | None) -> int:
    """Return the most tokens whose caches fit into the free memory of a CPU, within the context."""
    config, longest = model.config, model.config.context_length
    if mx.default_device().type == mx.gpu:
        return longest
    # Bytes of a token in all layers. Recurrent layers have none, whatever the length of a text.
    growing, sliding, size = model.page_bytes(1, kv_bits=kv_bits), 0, 0
    if config.sliding_window is not None:  # its layers keep the window alone, and never quantized
        layers, slides = config.num_hidden_layers, len(config.sliding_window.layers)
        growing = growing * (layers - slides) // layers
        sliding, size = model.page_bytes(1) * slides // layers, config.sliding_window.size

    def bytes_of(tokens: int) -> int:
        capacity = tokens + tokens // _GROWTH_PART
        return growing * capacity + sliding * min(capacity, size)

    return bisect_right(range(1, longest + 1), cache_bytes(free_memory()), key=bytes_of)


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
