"""The interface of drafters, and the pause of requests that accept few draft tokens."""

from collections.abc import Mapping, Sequence

from tinyllm_engine.request import RequestState
from tinyllm_engine.schedule.step import Step

_MIN_RATE = 0.3
"""The acceptance rate below which draft tokens cost more time than they save."""

_PAUSE_TOKENS = 32
"""The number of tokens decoded without draft tokens after a rate fell below `_MIN_RATE`."""


class Drafter:
    """A source of draft tokens, which the next step verifies together with the last token.

    Speculation never changes the answer (Leviathan et al. 2023). The sampler of the request chooses
    every token, and a draft token is accepted if it equals the chosen token: see
    `RequestState.accept`.

    A drafter without pages and without state of a request has `propose` alone.
    """

    def propose(self, limits: Mapping[RequestState, int]) -> None:
        """Append draft tokens to decoding requests, at most `limits[request]` each.

        `RequestState.draft_tokens` of each request is empty before the call.
        """
        raise NotImplementedError  # each drafter has its own; the other methods are optional

    def prepare(self, step: Step) -> None:
        """Prepare for a step before the model computes it."""

    def forget(self, request: RequestState) -> None:
        """Drop the state kept for a request."""

    def reset(self) -> None:
        """Handle the replacement of all pages by new, empty pages."""


def propose_drafts(
    drafter: Drafter,
    requests: Sequence[RequestState],
    num_speculative_tokens: int,
    total: int | None = None,
) -> list[RequestState]:
    """Propose draft tokens of requests, up to the first token that a grammar forbids.

    Args:
        drafter: the source of draft tokens.
        requests: running requests, in the order in which they are served. Paused requests get no
            draft tokens.
        num_speculative_tokens: the most draft tokens of a request.
        total: the most draft tokens of all requests; None for any number.

    Returns:
        The requests for which the drafter has computed. Some of them may have no draft token.
    """
    active = [request for request in requests if not is_paused(request)]
    limits = draft_limits(active, num_speculative_tokens, total)
    drafter.propose(limits)
    for request in limits:
        if request.constraint is not None:
            del request.draft_tokens[request.constraint.num_allowed(request.draft_tokens) :]
    return list(limits)


def draft_limits(
    requests: Sequence[RequestState], num_speculative_tokens: int, total: int | None = None
) -> dict[RequestState, int]:
    """Return the most draft tokens allowed for each request that chooses a next token.

    Args:
        requests: running requests, in the order in which they are served.
        num_speculative_tokens: the most draft tokens of a request.
        total: the most draft tokens of all requests; None for any number.
    """
    limits = dict[RequestState, int]()
    left = num_speculative_tokens * len(requests) if total is None else total
    for request in requests:
        if not request.is_prefilling and request.num_computed_tokens == len(request.tokens) - 1:
            limit = min(num_speculative_tokens, request.remaining - 1, left)
            if limit > 0:
                limits[request] = limit
                left -= limit
    return limits


def is_paused(request: RequestState) -> bool:
    """Return True while a request should decode without draft tokens."""
    return len(request.tokens) < request.drafts_resume_at


def record_acceptance(
    request: RequestState, num_draft_tokens: int, num_accepted_tokens: int
) -> None:
    """Record that a step accepted `num_accepted_tokens` of the draft tokens of a request.

    A request whose draft tokens are rarely accepted is paused. The latest step has the weight 1/4
    in the rate.
    """
    request.acceptance_rate += (
        num_accepted_tokens / num_draft_tokens - request.acceptance_rate
    ) / 4
    if request.acceptance_rate < _MIN_RATE:
        # Restart above the limit, so that one rejected draft does not cause the next pause.
        request.acceptance_rate = 2 * _MIN_RATE
        request.drafts_resume_at = len(request.tokens) + _PAUSE_TOKENS
