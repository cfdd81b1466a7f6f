"""The statistics of an engine, from its counts and the state of its scheduler."""

from dataclasses import dataclass

from tinyllm_engine.output import EngineStats
from tinyllm_engine.schedule.scheduler import Scheduler


@dataclass
class Counts:
    """Counts since an engine was made. `EngineStats` describes them."""

    generated_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    failed_steps: int = 0


def engine_stats(scheduler: Scheduler, counts: Counts) -> EngineStats:
    """Return the statistics of an engine."""
    manager, states = scheduler.block_manager, scheduler.states
    snapshots = None if states is None else states.snapshots
    return EngineStats(
        running=len(scheduler.running),
        waiting=scheduler.waiting,
        pages_total=manager.num_pages,
        pages_used=manager.num_pages - manager.available,
        pages_cached=manager.cached,
        states_total=0 if states is None else states.capacity,
        states_used=0 if states is None else states.used,
        snapshots_total=0 if snapshots is None else len(snapshots.slots),
        snapshots_held=0 if snapshots is None else snapshots.count,
        snapshots_used=0 if snapshots is None else snapshots.held,
        snapshot_hits=0 if snapshots is None else snapshots.hits,
        snapshot_evictions=0 if snapshots is None else snapshots.evictions,
        prompt_tokens=scheduler.prompt_tokens,
        cached_tokens=scheduler.cached_tokens,
        generated_tokens=counts.generated_tokens,
        preemptions=scheduler.preemptions,
        draft_tokens=counts.draft_tokens,
        accepted_tokens=counts.accepted_tokens,
        failed_steps=counts.failed_steps,
    )
