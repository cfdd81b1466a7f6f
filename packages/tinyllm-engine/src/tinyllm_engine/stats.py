"""The counts of an engine, and its statistics."""

from __future__ import annotations

from dataclasses import dataclass

from tinyllm_engine.output import EngineStats
from tinyllm_engine.schedule.scheduler import Scheduler
from tinyllm_engine.speculative.drafter import Drafter


@dataclass
class Counts:
    """Counts since the engine was made.

    Attributes:
        requests: count of added requests.
        prompt_tokens: count of tokens of all prompts.
        cached_tokens: count of prompt tokens that were in the prefix cache.
        generated_tokens: count of generated tokens.
        failed_steps: count of steps that raised an error.
    """

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    failed_steps: int = 0


def collect_stats(scheduler: Scheduler, drafter: Drafter | None, counts: Counts) -> EngineStats:
    """Return the statistics of an engine."""
    block_manager, states = scheduler.block_manager, scheduler.states
    snapshots = None if states is None else states.snapshots
    acceptance = None if drafter is None else drafter.acceptance
    return EngineStats(
        running=len(scheduler.running),
        waiting=scheduler.waiting,
        pages_total=block_manager.num_pages,
        pages_used=block_manager.num_pages - block_manager.available,
        pages_cached=block_manager.cached,
        states_total=0 if states is None else states.capacity,
        states_used=0 if states is None else states.used,
        snapshots_total=0 if snapshots is None else len(snapshots.slots),
        snapshots_held=0 if snapshots is None else snapshots.count,
        snapshots_used=0 if snapshots is None else snapshots.held,
        snapshot_hits=0 if snapshots is None else snapshots.hits,
        snapshot_evictions=0 if snapshots is None else snapshots.evictions,
        prompt_tokens=counts.prompt_tokens,
        cached_tokens=counts.cached_tokens,
        generated_tokens=counts.generated_tokens,
        preemptions=scheduler.preemptions,
        draft_tokens=0 if acceptance is None else acceptance.drafted,
        accepted_tokens=0 if acceptance is None else acceptance.accepted,
        failed_steps=counts.failed_steps,
    )
