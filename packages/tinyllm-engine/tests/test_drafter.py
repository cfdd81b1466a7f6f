"""Requests that accept few draft tokens decode without them for a while."""

from tinyllm_engine.request import Request, RequestState
from tinyllm_engine.speculative.drafter import is_paused, record_acceptance
from tinyllm_engine.testing import state_without_model


def rejected_until_paused() -> tuple[RequestState, int]:
    """Return a request whose draft tokens were all rejected, and the number of these steps."""
    request, steps = state_without_model(Request([1])), 0
    while not is_paused(request):
        record_acceptance(request, 4, 0)
        steps += 1
    return request, steps


def test_a_single_rejected_draft_causes_no_pause() -> None:
    request, steps = rejected_until_paused()
    assert steps > 1
    while is_paused(request):
        request.tokens.append(1)
    assert len(request.tokens) == request.drafts_resume_at
    record_acceptance(request, 4, 0)
    assert not is_paused(request), "the next pause follows at once"


def test_accepted_drafts_cause_no_pause() -> None:
    request = state_without_model(Request([1]))
    for _ in range(100):
        record_acceptance(request, 4, 2)
        assert not is_paused(request)
