"""Prompt lookup: draft tokens from the text itself, without a second model."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tinyllm_engine.request import RequestState
from tinyllm_engine.speculative.drafter import Drafter

_NGRAM_LENGTH = 3
"""The number of tokens that must match. Two tokens match too often, four too rarely."""


@dataclass
class _Index:
    """The n-grams of a text.

    Attributes:
        after: the position after the latest occurrence of each n-gram.
        seen: the number of tokens indexed so far.
    """

    after: dict[tuple[int, ...], int] = field(default_factory=dict)
    seen: int = 0


class PromptLookup(Drafter):
    """Proposes the tokens that followed the latest earlier occurrence of the last tokens.

    Prompt lookup decoding (Saxena 2023) suits prompts whose text recurs in the answer, such as code
    to edit, or text to quote or to summarize. A request whose draft tokens are rarely accepted
    decodes without draft tokens for a while.
    """

    def __init__(self) -> None:
        """Make a drafter without requests."""
        self._indices: dict[RequestState, _Index] = {}

    def propose(self, limits: Mapping[RequestState, int]) -> None:
        """Append draft tokens to all requests; no draft tokens if the last tokens are new."""
        for request, limit in limits.items():
            request.draft_tokens += self._continuation(request, limit)

    def forget(self, request: RequestState) -> None:
        """Drop the index of a request."""
        self._indices.pop(request, None)

    def _continuation(self, request: RequestState, limit: int) -> list[int]:
        """Return at most `limit` tokens that followed the latest earlier occurrence."""
        tokens = request.tokens
        index = self._indices.setdefault(request, _Index())
        for end in range(max(index.seen, _NGRAM_LENGTH), len(tokens)):
            index.after[tuple(tokens[end - _NGRAM_LENGTH : end])] = end
        index.seen = len(tokens)
        start = index.after.get(tuple(tokens[-_NGRAM_LENGTH:]))
        return [] if start is None else tokens[start : start + limit]
