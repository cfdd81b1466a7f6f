"""Draft tokens from the text itself: speculation without a second model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tinyllm_engine.request import RequestState
from tinyllm_engine.schedule.step import Step
from tinyllm_engine.speculative.drafter import Acceptance

_GRAM = 3
"""The length of a match. Two tokens match too much, four too little."""


@dataclass
class _Index:
    """The position after the latest occurrence of each n-gram, up to position `seen`."""

    after: dict[tuple[int, ...], int] = field(default_factory=dict)
    seen: int = 0


class PromptLookup:
    """Proposes the tokens that followed an earlier occurrence of the last tokens.

    Prompt lookup decoding (Saxena 2023): it suits code that is edited, and text that is quoted or
    summed up. A request whose draft tokens are rarely accepted decodes without them for a while.

    Attributes:
        acceptance: the record of accepted tokens.
    """

    def __init__(self) -> None:
        """Start without requests."""
        self.acceptance = Acceptance()
        self._indices: dict[RequestState, _Index] = {}

    def propose(self, limits: Mapping[RequestState, int]) -> None:
        """Set the draft tokens of requests whose last tokens occurred before."""
        for request, limit in limits.items():
            request.draft[:] = self._continuation(request, limit)

    def follow(self, step: Step) -> None:
        """Do nothing: this drafter needs only the tokens."""

    def forget(self, request: RequestState) -> None:
        """Drop the state kept for a request."""
        self._indices.pop(request, None)
        self.acceptance.forget(request)

    def reset(self) -> None:
        """Do nothing: this drafter has no pages."""

    def _continuation(self, request: RequestState, limit: int) -> list[int]:
        """Return the tokens that followed an earlier occurrence of the last tokens."""
        tokens = request.tokens
        index = self._indices.setdefault(request, _Index())
        for end in range(max(index.seen, _GRAM), len(tokens)):
            index.after[tuple(tokens[end - _GRAM : end])] = end
        index.seen = len(tokens)
        start = index.after.get(tuple(tokens[-_GRAM:]))
        if start is None or self.acceptance.is_paused(request):
            return []
        return tokens[start : start + limit]
