"""The state of a grammar while a request is generated, and masks of the tokens that it allows."""

import time
from collections.abc import Sequence
from typing import cast

import mlx.core as mx
from jaxtyping import Bool
from llguidance import LLMatcher

from tinyllm_engine.grammar.reasoning_prefix import ReasoningPrefix

_FIRST_SECONDS = 0.25
_SECONDS_PER_TOKEN = 0.005
"""Processor seconds that a request may take for its masks: at first, and for each token more.
One mask takes at most about 0.2 s, because of `limits.MATCHER_LIMITS`."""

MAX_LEXER_TOKENS = 2_048
"""The most tokens of all requests with one lexer, before the next request gets a new lexer.

A byte of a new text makes about one state, and `limits.MATCHER_LIMITS` allows 20,000. 2,048 tokens
of 4 bytes leave more than half of them to requests in progress."""


class Lexer:
    """The lexer that all matchers copied from one another share, with its use so far.

    Copies of a matcher share the states of the lexer, which are never freed. Without a bound on its
    use, a popular grammar would reach the limit of states, and fail for all later requests.

    Attributes:
        num_tokens: tokens of all requests so far.
        failed: True once a request has reached a limit of llguidance.
    """

    def __init__(self) -> None:
        """Make the record of a lexer without use."""
        self.num_tokens = 0
        self.failed = False

    @property
    def is_spent(self) -> bool:
        """True if later requests need a new lexer."""
        return self.failed or self.num_tokens >= MAX_LEXER_TOKENS


class Constraint:
    """State of the grammar of one request.

    End tokens are allowed if the text is complete. If the grammar allows no further text, only end
    tokens are allowed, so that the request ends with the finish reason "stop".

    Masks are computed on the host, while the device computes the model. For 152,000 tokens and a
    JSON schema, a mask takes 0.02 ms as a rule, and 40 ms with 500 optional properties. Its
    conversion to an MLX array takes 0.2 ms.

    Attributes:
        error: the reason why the grammar was given up, without text of the request; None while all
            is well. Tokens chosen with later masks must be dropped.
        step_seconds: processor seconds of all methods, between the ends of the latest two calls of
            `masks`.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        prefix: ReasoningPrefix,
        vocab_size: int,
        name: str,
        lexer: Lexer,
    ) -> None:
        """Make the state before the first token.

        Args:
            matcher: the matcher of the text after the reasoning prefix.
            prefix: the reasoning prefix.
            vocab_size: V, the length of a mask.
            name: the name of the grammar for error messages, as in `Grammar`.
            lexer: the lexer of the matcher.
        """
        self._name = name
        self._lexer = lexer
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._prefix = prefix
        self._state = 0
        self._seconds = _FIRST_SECONDS
        self._draft_seconds: list[float] = []  # of the mask after each draft token
        self._since_masks = 0.0
        self.step_seconds = 0.0
        self.error: str | None = None

    def num_allowed(self, draft_tokens: Sequence[int]) -> int:
        """Return the length of the longest prefix of `draft_tokens` that the grammar allows."""
        started = time.thread_time()
        state, start = self._state, 0
        while start < len(draft_tokens) and not self._prefix.is_over(state):
            if not self._prefix.allows(state, draft_tokens[start]):
                return start
            state = self._prefix.next(state, draft_tokens[start])
            start += 1
        allowed = start + self._matcher.validate_tokens(list(draft_tokens[start:]))
        self._charge(started)
        return allowed

    def masks(self, draft_tokens: Sequence[int]) -> list[Bool[mx.array, "V"]]:
        """Return the masks of allowed tokens: for the next token, and after each draft token.

        Args:
            draft_tokens: draft tokens that the grammar allows; see `num_allowed`.

        Returns:
            1 + len(draft_tokens) masks, True for allowed tokens. They have no meaning if `error` is
            set.
        """
        started = time.thread_time()
        state, matched = self._state, 0
        masks = [self._mask()]
        self._charge(started)
        self._draft_seconds.clear()
        try:
            for token in draft_tokens:
                started = time.thread_time()
                matched += self._advance(token)
                masks.append(self._mask())
                self._draft_seconds.append(time.thread_time() - started)
        finally:  # restore the state also after an error, because the step may be computed again
            self._matcher.rollback(matched)
            self._state = state
        self._check_limits()
        self.step_seconds = self._since_masks + sum(self._draft_seconds)
        self._since_masks = 0.0
        return masks

    def consume(self, tokens: Sequence[int]) -> None:
        """Advance the state by the chosen tokens of the request.

        Masks after draft tokens that were rejected do not count for the limit of the request, which
        would have the same masks without draft tokens.
        """
        started = time.thread_time()
        for token in tokens:
            self._advance(token)
        self._lexer.num_tokens += len(tokens)
        self._seconds += len(tokens) * _SECONDS_PER_TOKEN
        self._seconds -= sum(self._draft_seconds[: len(tokens) - 1])
        self._charge(started)

    def _charge(self, started: float) -> None:
        """Count the time since `started`, and set `error` once a limit is exceeded."""
        seconds = time.thread_time() - started
        self._seconds -= seconds
        self._since_masks += seconds
        self._check_limits()

    def _check_limits(self) -> None:
        """Set `error` once a limit is exceeded.

        No check of the grammar can foresee how much time and memory its matcher needs.
        """
        if self._matcher.is_error():
            self._lexer.failed = True
            # Not the message of llguidance, which quotes the grammar and the text of the request.
            reason = self._matcher.stop_reason()
            self.error = (
                f"{self._name}: expected fewer states, got too many ({reason}): simplify it"
            )
        elif self._seconds < 0:
            self.error = (
                f"{self._name}: expected masks that take {1000 * _SECONDS_PER_TOKEN:.0f} ms a "
                "token, got slower ones: simplify it"
            )

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
