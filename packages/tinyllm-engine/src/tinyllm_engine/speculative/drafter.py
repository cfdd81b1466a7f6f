"""The interface of drafters, and statistics of accepted draft tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tinyllm_engine.request import RequestState
from tinyllm_engine.schedule.step import Step

_MIN_RATE = 0.3
"""The acceptance rate below which draft tokens cost more time than they save."""

_PAUSE_TOKENS = 32
"""The number of tokens decoded without draft tokens after a rate fell below `_MIN_RATE`."""


@runtime_checkable
class Drafter(Protocol):
    """A source of draft tokens, which the next step verifies together with the last token.

    Speculation never changes the answer (Leviathan et al. 2023). The sampler of the request chooses
    every token, and a draft token is accepted if it equals the chosen token: see
    `RequestState.accept`.

    Attributes:
        acceptance: the statistics of accepted draft tokens.
    """

    acceptance: Acceptance

    def propose(self, limits: Mapping[RequestState, int]) -> None:
        """Append draft tokens to decoding requests, at most `limits[request]` each.

        `RequestState.draft` of each request is empty before the call.
        """
        ...

    def prepare(self, step: Step) -> None:
        """Prepare for a step before the model computes it."""
        ...

    def forget(self, request: RequestState) -> None:
        """Drop the state kept for a request."""
        ...

    def reset(self) -> None:
        """Handle the replacement of all pages by new, empty pages."""
        ...


def propose_drafts(
    drafter: Drafter, requests: Sequence[RequestState], speculation: int, total: int | None = None
) -> list[RequestState]:
    """Propose draft tokens of requests, up to the first token that a grammar forbids.

    Args:
        drafter: the source of draft tokens.
        requests: running requests, in the order in which they are served. Paused requests get no
            draft tokens.
        speculation: the most draft tokens of a request.
        total: the most draft tokens of all requests; None for any number.

    Returns:
        The requests for which the drafter has computed. Some of them may have no draft token.
    """
    paused = drafter.acceptance.is_paused
    active = [request for request in requests if not paused(request)]
    limits = draft_limits(active, speculation, total)
    drafter.propose(limits)
    for request in limits:
        if request.constraint is not None:
            del request.draft[request.constraint.num_allowed(request.draft) :]
    return list(limits)


def draft_limits(
    requests: Sequence[RequestState], speculation: int, total: int | None = None
) -> dict[RequestState, int]:
    """Return the most draft tokens allowed for each request that chooses a next token.

    Args:
        requests: running requests, in the order in which they are served.
        speculation: the most draft tokens of a request.
        total: the most draft tokens of all requests; None for any number.
    """
    limits = dict[RequestState, int]()
    left = speculation * len(requests) if total is None else total
    for request in requests:
        if not request.is_prefilling and request.num_computed_tokens == len(request.tokens) - 1:
            limit = min(speculation, request.remaining - 1, left)
            if limit > 0:
                limits[request] = limit
                left -= limit
    return limits


@dataclass
class _Record:
    """The statistics of one request.

    Attributes:
        rate: moving average of the share of accepted draft tokens. The latest step has the weight
            1/4.
        resume_at: the text length, in tokens, at which a pause ends.
    """

    rate: float = 1.0
    resume_at: int = 0


class Acceptance:
    """Counts accepted draft tokens, and pauses requests whose draft tokens are rarely accepted.

    Attributes:
        drafted: number of verified draft tokens so far.
        accepted: number of accepted draft tokens so far.
    """

    def __init__(self) -> None:
        """Start without statistics."""
        self.drafted = 0
        self.accepted = 0
        self._records: dict[RequestState, _Record] = {}

    def is_paused(self, request: RequestState) -> bool:
        """Return True while the request should decode without draft tokens."""
        record = self._records.get(request)
        return record is not None and len(request.tokens) < record.resume_at

    def record(self, request: RequestState, drafted: int, accepted: int) -> None:
        """Record that a step accepted `accepted` of the `drafted` draft tokens of a request."""
        if not drafted:
            return
        self.drafted += drafted
        self.accepted += accepted
        record = self._records.setdefault(request, _Record())
        record.rate += (accepted / drafted - record.rate) / 4
        if record.rate < _MIN_RATE:
            # Restart above the limit, so that one rejected draft does not cause the next pause.
            record.rate, record.resume_at = 2 * _MIN_RATE, len(request.tokens) + _PAUSE_TOKENS

    def forget(self, request: RequestState) -> None:
        """Drop the statistics of a request."""
        self._records.pop(request, None)
