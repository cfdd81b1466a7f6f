"""The state of a grammar while a request is generated, and masks of the tokens that it allows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

import mlx.core as mx
from jaxtyping import Bool
from llguidance import LLMatcher

from tinyllm_engine.grammar.reasoning_prefix import ReasoningPrefix

_log = logging.getLogger(__name__)


class Constraint:
    """State of the grammar of one request.

    End tokens are allowed if the text is complete. If the grammar allows no further text, only end
    tokens are allowed, so that the request ends with the finish reason "stop".

    Masks are computed on the host, while the device computes the model. For 152,000 tokens and a
    JSON schema, a mask takes 0.02 ms as a rule, and 0.3 ms at most. Its conversion to an MLX array
    takes 0.2 ms.
    """

    def __init__(self, matcher: LLMatcher, prefix: ReasoningPrefix, vocab_size: int) -> None:
        """Make the state before the first token.

        Args:
            matcher: the matcher of the text after the reasoning prefix.
            prefix: the reasoning prefix.
            vocab_size: V, the length of a mask.
        """
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._prefix = prefix
        self._state = 0

    def num_allowed(self, draft: Sequence[int]) -> int:
        """Return the length of the longest prefix of `draft` that the grammar allows."""
        state, start = self._state, 0
        while start < len(draft) and not self._prefix.is_over(state):
            if not self._prefix.allows(state, draft[start]):
                return start
            state = self._prefix.next(state, draft[start])
            start += 1
        return start + self._matcher.validate_tokens(list(draft[start:]))

    def masks(self, draft: Sequence[int]) -> list[Bool[mx.array, "V"]]:
        """Return the masks of allowed tokens: for the next token, and after each draft token.

        Args:
            draft: draft tokens that the grammar allows; see `num_allowed`.

        Returns:
            1 + len(draft) masks, True for allowed tokens.
        """
        state, matched = self._state, 0
        masks = [self._mask()]
        try:
            for token in draft:
                matched += self._advance(token)
                masks.append(self._mask())
        finally:  # restore the state also after an error, because the step may be computed again
            self._matcher.rollback(matched)
            self._state = state
        return masks

    def consume(self, tokens: Sequence[int]) -> None:
        """Advance the state by the chosen tokens of the request."""
        for token in tokens:
            self._advance(token)
        if self._matcher.is_error():
            # The matcher exceeded its limits of time or memory, which no check of the grammar can
            # foresee. From here on only end tokens are allowed. Do not log the full message of
            # llguidance, because it quotes the grammar and the text of a conversation.
            _log.warning("the grammar of a request was given up: %s", self._matcher.stop_reason())

    def _advance(self, token: int) -> bool:
        """Advance by one token.

        Returns:
            True if the matcher consumed the token, so that `rollback` must undo it. False if the
            token belongs to the reasoning prefix.
        """
        if self._prefix.is_over(self._state):
            return self._matcher.consume_token(token)
        self._state = self._prefix.next(self._state, token)
        return False

    def _mask(self) -> Bool[mx.array, "V"]:
        """Return the mask of the tokens that are allowed next."""
        if not self._prefix.is_over(self._state):
            return self._prefix.allowed(self._state)
        bitmask = memoryview(self._matcher.compute_bitmask()).cast("I")
        # V / 32 words. The cast is for MLX's type stubs, which do not declare buffers.
        words = mx.array(cast("list[int]", bitmask))
        bits = (words[:, None] >> mx.arange(32, dtype=mx.uint32)) & 1
        return bits.flatten()[: self._vocab_size].astype(mx.bool_)
