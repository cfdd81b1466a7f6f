"""The division of the prompt tokens of a step between prompts."""

from collections.abc import Sequence

from tinyllm_engine.request import RequestState
from tinyllm_engine.schedule.tenant_quotas import by_tenant

SCORED_TOKENS = 128
"""The most prompt tokens of a step whose log-probabilities are asked for. It limits the memory of
the scores: V numbers for each token."""


def divide_scored(prompts: Sequence[RequestState], budget: int) -> dict[RequestState, int]:
    """Divide the prompt tokens of a step like `divide`, with at most `SCORED_TOKENS` scored tokens.

    Prompts without scores get what the limit leaves of the budget.
    """
    lengths = divide(prompts, budget)
    scored = [prompt for prompt in prompts if prompt.wants_prompt_logprobs]
    part = sum(lengths.get(prompt, 0) for prompt in scored)
    if part <= SCORED_TOKENS:
        return lengths
    others = [prompt for prompt in prompts if not prompt.wants_prompt_logprobs]
    return divide(scored, SCORED_TOKENS) | divide(others, budget - SCORED_TOKENS)


def divide(prompts: Sequence[RequestState], budget: int) -> dict[RequestState, int]:
    """Return the number of tokens of each prompt in the next step, `budget` tokens in all.

    Tenants get equal parts. Half of the part of a tenant goes to its prompt that is first in queue
    order, the rest to its shortest other prompts. A short prompt therefore does not wait for a long
    prompt, and short prompts do not starve a long prompt.

    Args:
        prompts: the requests that prefill, in queue order.
        budget: the most tokens.

    Returns:
        The prompts that get at least one token.
    """
    # The tenant with the fewest tokens first: what it leaves is divided between the others.
    queues = sorted(
        by_tenant(prompts).values(), key=lambda queue: sum(_remaining(each) for each in queue)
    )
    lengths: dict[RequestState, int] = {}
    for index, queue in enumerate(queues):
        part = -(-budget // (len(queues) - index))
        part_lengths = _divide_part(queue, part)
        budget -= sum(part_lengths.values())
        lengths |= part_lengths
    return {prompt: length for prompt, length in lengths.items() if length}


def _divide_part(prompts: Sequence[RequestState], part: int) -> dict[RequestState, int]:
    """Divide the part of a tenant between its prompts."""
    first, *others = prompts
    others.sort(key=_remaining)
    lengths = {first: min(_remaining(first), part - part // 2 if others else part)}
    part -= lengths[first]
    for request in others:
        lengths[request] = min(_remaining(request), part)
        part -= lengths[request]
    lengths[first] += min(_remaining(first) - lengths[first], part)
    return lengths


def _remaining(request: RequestState) -> int:
    """Return the number of prompt tokens that are not prefilled yet."""
    return request.num_prompt_tokens - request.num_computed_tokens
