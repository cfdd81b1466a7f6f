"""Which tokens a grammar lets a request choose."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

import mlx.core as mx
from jaxtyping import Bool
from llguidance import LLMatcher

from tinyllm_engine.grammar.reasoning_prefix import Preamble

_log = logging.getLogger(__name__)


class Constraint:
    """Follows the tokens of one request through its grammar.

    Where the grammar can end, the end tokens are allowed; where nothing else can follow, they alone
    are. So a text ends by itself, and with the reason "stop".

    Which tokens are allowed is found on the host, while the device is busy with the model. For
    152,000 tokens and a JSON schema that takes 0.02 ms as a rule and 0.3 ms at most; the mask as an
    array on the device, 0.2 ms more.
    """

    def __init__(self, matcher: LLMatcher, preamble: Preamble, vocab_size: int) -> None:
        """Begin before the first token."""
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._preamble = preamble
        self._place = 0

    def admits(self, draft: Sequence[int]) -> int:
        """How many tokens of a draft could be chosen one after another."""
        place, start = self._place, 0
        while start < len(draft) and not self._preamble.is_over(place):
            if not self._preamble.allows(place, draft[start]):
                return start
            place = self._preamble.next(place, draft[start])
            start += 1
        return start + self._matcher.validate_tokens(list(draft[start:]))

    def masks(self, draft: Sequence[int]) -> list[Bool[mx.array, "V"]]:
        """What may be chosen next, and after each token of a draft that the grammar admits."""
        place = self._place
        masks, matched = [self._mask()], 0
        for token in draft:
            matched += self._follow(token)
            masks.append(self._mask())
        self._matcher.rollback(matched)
        self._place = place
        return masks

    def consume(self, tokens: Sequence[int]) -> None:
        """Go on after tokens that were chosen."""
        for token in tokens:
            self._follow(token)
        if self._matcher.is_error():
            # Its limits of time and memory, which no check of the grammar can foresee. From here on
            # it allows the end tokens alone. What llguidance says of it beside the reason is left
            # out of the log: the grammar and the text, which are parts of a conversation.
            _log.warning("a grammar was given up: %s", self._matcher.stop_reason())

    def _follow(self, token: int) -> bool:
        """Take one token; whether it was the grammar's."""
        if self._preamble.is_over(self._place):
            return self._matcher.consume_token(token)
        self._place = self._preamble.next(self._place, token)
        return False

    def _mask(self) -> Bool[mx.array, "V"]:
        if not self._preamble.is_over(self._place):
            return self._preamble.allowed(self._place)
        bitmask = memoryview(self._matcher.compute_bitmask()).cast("I")
        words = mx.array(cast("list[int]", bitmask))  # V / 32; MLX's stubs know of no buffers
        bits = (words[:, None] >> mx.arange(32, dtype=mx.uint32)) & 1
        return bits.flatten()[: self._vocab_size].astype(mx.bool_)
