"""Random schedules without a model find faults that are planted in the slots of states."""

import random

import pytest
from tinyllm_engine.kv.snapshot_store import SnapshotStore
from tinyllm_engine.request import Request
from tinyllm_engine.schedule.prefix_lookup import PrefixLookup
from tinyllm_engine.schedule.scheduler import Scheduler
from tinyllm_engine.schedule.state_slots import StateSlots
from tinyllm_engine.testing import SchedulerMemory, with_fault

SEEDS = 60

Fault = tuple[object, str, str, str]
FAULTS: dict[str, Fault] = {
    "a request keeps the state of the next draft token": (
        StateSlots,
        "update",
        "slots.own.pop(computed - request.num_computed_tokens - 1)",
        "slots.own.pop(computed - request.num_computed_tokens)",
    ),
    "a request keeps the state before its draft tokens": (
        StateSlots,
        "update",
        "slots.own.pop(computed - request.num_computed_tokens - 1)",
        "slots.own.pop(0)",
    ),
    "the slots of draft tokens are not freed": (
        StateSlots,
        "update",
        "self._free.extend(slots.own)",
        "pass",
    ),
    "draft tokens share a slot with another request": (
        StateSlots,
        "assign_decode_slots",
        "self._free.popleft() for _ in draft_tokens",
        "self._free[0] for _ in draft_tokens",
    ),
    "a cancelled request keeps its slot": (
        StateSlots,
        "free",
        "self._free.extend(slots.own)",
        "pass",
    ),
    "a cancelled request keeps its snapshots": (
        StateSlots,
        "free",
        "self.snapshots.release(block_hash)",
        "pass",
    ),
    "a request starts without its snapshot": (
        StateSlots,
        "admit",
        "if request.num_computed_tokens:",
        "if False:",
    ),
    "a prefix counts a page too many": (
        PrefixLookup,
        "find",
        "return found[:count]",
        "return found[: count + 1]",
    ),
    "a prefix ends where no snapshot is": (
        PrefixLookup,
        "find",
        "return found[:count]",
        "return found if count else []",
    ),
    "a held snapshot is evicted": (
        SnapshotStore,
        "acquire",
        "self._unheld.pop(block_hash, None)",
        "pass",
    ),
    "an evicted snapshot is found": (
        SnapshotStore,
        "begin",
        "self._slot_of.pop(oldest)",
        "self._slot_of[oldest]",
    ),
    "a snapshot is saved a token late": (
        StateSlots,
        "assign_prefill_slots",
        "saves[length] = slots",
        "saves[min(length + 1, chunk.stop)] = slots",
    ),
    "pages of decoded tokens are shared": (
        Scheduler,
        "update",
        "computed if self.states is None else min(computed, request.num_prompt_tokens)",
        "computed",
    ),
    "a failure leaves snapshots": (Scheduler, "reset", "self.states.reset()", "pass"),
}


def schedule(seed: int) -> None:
    """Add, cancel, preempt and fail at random, and check all slots."""
    draw = random.Random(seed)
    world = SchedulerMemory(
        draw.choice([9, 14, 60]), states=draw.choice([2, 5, 9]), snapshots=draw.choice([1, 3, 9])
    )
    assert world.states is not None
    live = []
    for _ in range(60):
        event = draw.random()
        if event < 0.3:
            start, end = ([draw.randrange(2)] * draw.randrange(10) for _ in range(2))
            live.append(world.add(Request([5, *start, *end], draw.randrange(1, 13))))
        elif event < 0.35 and live:
            world.scheduler.remove(live.pop(draw.randrange(len(live))))
        elif event < 0.37:
            world.slots.clear()
            world.saved.clear()
            world.scheduler.reset()
        for request in world.step(draw.randrange(2, 13), draw.randrange(4)):
            live.remove(request)
    for _ in range(2000):
        if live:
            for request in world.step(8, 2):
                live.remove(request)
    assert not live
    assert world.states.used == world.states.snapshots.held == 0
    assert world.block_manager.available == world.block_manager.num_pages


def schedules() -> None:
    for seed in range(SEEDS):
        schedule(seed)


@pytest.mark.usefixtures("unchecked")
def test_the_schedules_pass_without_a_fault() -> None:
    schedules()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("fault", FAULTS)
def test_random_schedules_find_the_fault(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    owner, name, old, new = FAULTS[fault]
    monkeypatch.setattr(owner, name, with_fault(getattr(owner, name), old, new))
    with pytest.raises((AssertionError, IndexError, KeyError, ValueError)):
        schedules()
