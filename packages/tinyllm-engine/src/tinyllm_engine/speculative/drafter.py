"""The interface of drafters, and the record of how often their tokens are accepted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tinyllm_engine.request import RequestState
from tinyllm_engine.schedule.step import Step

_POOR = 0.3
"""The acceptance rate below which draft tokens cost more than they save."""

_PAUSE = 32
"""Tokens that a request decodes without draft tokens after its rate fell below the limit."""


@runtime_checkable
class Drafter(Protocol):
    """A source of draft tokens, which the next step verifies beside the last token.

    Speculation is lossless for any draft tokens (Leviathan et al. 2023). The request's own sampler
    chooses each token, and a draft token is accepted if it is the token chosen: see
    `RequestState.accept`.

    Attributes:
        acceptance: the record of accepted tokens.
    """

    acceptance: Acceptance

    def propose(self, limits: Mapping[RequestState, int]) -> None:
        """Set the draft tokens of decoding requests, at most `limits[request]` each."""
        ...

    def follow(self, step: Step) -> None:
        """Take note of a step before it is computed, prompts included."""
        ...

    def forget(self, request: RequestState) -> None:
        """Drop the state kept for a request."""
        ...

    def reset(self) -> None:
        """Forget the contents of all pages: they are new and empty."""
        ...


@dataclass
class _Record:
    """The acceptance rate of a request, the latest drafts counting most, and when to try again."""

    rate: float = 1.0
    resume_at: int = 0


class Acceptance:
    """Counts accepted draft tokens, and pauses requests whose draft tokens are rarely accepted.

    Attributes:
        drafted: draft tokens verified so far.
        accepted: draft tokens accepted so far.
    """

    def __init__(self) -> None:
        """Start without records."""
        self.drafted = 0
        self.accepted = 0
        self._records: dict[RequestState, _Record] = {}

    def is_paused(self, request: RequestState) -> bool:
        """Return True while the request should decode without draft tokens."""
        record = self._records.get(request)
        return record is not None and len(request.tokens) < record.resume_at

    def record(self, request: RequestState, drafted: int, accepted: int) -> None:
        """Record that a step accepted `accepted` of `drafted` draft tokens."""
        if not drafted:
            return
        self.drafted += drafted
        self.accepted += accepted
        record = self._records.setdefault(request, _Record())
        record.rate += (accepted / drafted - record.rate) / 4
        if record.rate < _POOR:
            record.rate, record.resume_at = 2 * _POOR, len(request.tokens) + _PAUSE

    def forget(self, request: RequestState) -> None:
        """Drop the record of a request."""
        self._records.pop(request, None)
