"""The tokens that a grammar allows."""

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

    End tokens are allowed where the grammar can end. Where nothing else can follow, only end tokens
    are allowed, so that the text ends with the reason "stop".

    Masks are computed on the host, while the device is busy with the model. For 152,000 tokens and
    a JSON schema a mask takes 0.02 ms as a rule and 0.3 ms at most, and 0.2 ms more as an array.
    """

    def __init__(self, matcher: LLMatcher, prefix: ReasoningPrefix, vocab_size: int) -> None:
        """Begin before the first token."""
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._prefix = prefix
        self._state = 0

    def num_allowed(self, draft: Sequence[int]) -> int:
        """Return the number of draft tokens that the grammar allows one after another."""
        state, start = self._state, 0
        while start < len(draft) and not self._prefix.is_over(state):
            if not self._prefix.allows(state, draft[start]):
                return start
            state = self._prefix.next(state, draft[start])
            start += 1
        return start + self._matcher.validate_tokens(list(draft[start:]))

    def masks(self, draft: Sequence[int]) -> list[Bool[mx.array, "V"]]:
        """Return the tokens allowed next, and after each token of an allowed draft."""
        state, matched = self._state, 0
        masks = [self._mask()]
        try:
            for token in draft:
                matched += self._advance(token)
                masks.append(self._mask())
        finally:  # the engine may take the step again
            self._matcher.rollback(matched)
            self._state = state
        return masks

    def consume(self, tokens: Sequence[int]) -> None:
        """Advance by tokens that were chosen."""
        for token in tokens:
            self._advance(token)
        if self._matcher.is_error():
            # The matcher exceeded its limits of time or memory, which no check of the grammar can
            # foresee. From here on only end tokens are allowed. Only llguidance's reason is logged,
            # because its message also holds the grammar and the text, parts of a conversation.
            _log.warning("a grammar was given up: %s", self._matcher.stop_reason())

    def _advance(self, token: int) -> bool:
        """Advance by one token.

        Returns:
            True if the matcher consumed it (`rollback` must then undo it), False if it belonged to
            the reasoning prefix.
        """
        if self._prefix.is_over(self._state):
            return self._matcher.consume_token(token)
        self._state = self._prefix.next(self._state, token)
        return False

    def _mask(self) -> Bool[mx.array, "V"]:
        if not self._prefix.is_over(self._state):
            return self._prefix.allowed(self._state)
        bitmask = memoryview(self._matcher.compute_bitmask()).cast("I")
        words = mx.array(cast("list[int]", bitmask))  # V / 32; MLX's stubs know of no buffers
        bits = (words[:, None] >> mx.arange(32, dtype=mx.uint32)) & 1
        return bits.flatten()[: self._vocab_size].astype(mx.bool_)
