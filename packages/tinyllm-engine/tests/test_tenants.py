"""The division of time, seats and pages between tenants, tested without a model."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import SimpleNamespace
from typing import cast

import pytest
from tinyllm_engine.errors import EngineFullError
from tinyllm_engine.grammar.constraint import Constraint
from tinyllm_engine.request import Request, RequestState
from tinyllm_engine.schedule.scheduler import Scheduler
from tinyllm_engine.schedule.step import Chunk
from tinyllm_engine.schedule.tenant_time import PassTime, TenantTime
from tinyllm_engine.testing import SchedulerMemory, state_without_model


class Machine:
    """Simulated decode passes of endless requests, which take `fixed + per_row * rows` seconds.

    Scheduling and outputs take `outside` seconds for each row in addition.
    """

    def __init__(
        self,
        fixed: float,
        per_row: float,
        masks: dict[str, float] | None = None,
        outside: float = 0.0,
    ) -> None:
        self.fixed, self.per_row, self.outside = fixed, per_row, outside
        self.masks = masks or {}  # seconds of the mask of one row
        self.time = TenantTime()
        self.clock = 0.0
        self.steps: dict[str, int] = {}

    def run(self, seconds: float, rows: dict[str, int], weights: dict[str, float]) -> None:
        stop = self.clock + seconds
        self.steps = dict.fromkeys(rows, 0)
        while self.clock < stop:
            throttled = self.time.choose_throttled(weights)
            served = {tenant: count for tenant, count in rows.items() if tenant not in throttled}
            assert served
            took = self.fixed + self.per_row * sum(served.values())
            took += sum(self.masks.get(t, 0.0) * count for t, count in served.items())
            chunks = [
                chunk(t, weights[t], self.masks.get(t))
                for t, count in served.items()
                for _ in range(count)
            ]
            self.time.charge_decode(chunks, took)
            requests = [each.request for each in chunks]
            self.time.charge_requests(requests, self.outside * len(chunks))
            self.clock += took + self.outside * len(chunks)
            for tenant in served:
                self.steps[tenant] += 1


@cache
def chunk(tenant: str, weight: float = 1.0, mask: float | None = None) -> Chunk:
    state = state_without_model(Request([1], tenant=tenant, weight=weight))
    if mask is not None:
        state.constraint = cast(Constraint, SimpleNamespace(step_seconds=mask))
    return Chunk(state, 0, 1, [1], 1)


EVEN = {"quiet": 1.0, "greedy": 1.0}


@pytest.mark.parametrize(("fixed", "per_row"), [(0.0, 0.01), (0.01, 0.001), (0.02, 0.0001)])
def test_a_stream_keeps_its_speed_beside_many_streams_of_another_tenant(
    fixed: float, per_row: float
) -> None:
    machine = Machine(fixed, per_row)
    machine.run(10, {"quiet": 1, "greedy": 31}, EVEN)
    alone = 10 / (fixed + per_row)
    assert machine.steps["quiet"] >= 0.45 * alone
    assert machine.steps["greedy"] * 31 >= 0.45 * 10 / (fixed / 31 + per_row)


def test_the_time_outside_of_passes_counts() -> None:
    machine = Machine(0.01, 0.0, outside=0.001)
    machine.run(10, {"quiet": 1, "greedy": 31}, EVEN)
    # The row alone takes 0.011 s, so its share allows 454 steps. Unbilled it would have 238.
    assert machine.steps["quiet"] >= 0.45 * 10 / 0.011


def test_slow_masks_slow_the_tenant_of_the_grammar_alone() -> None:
    """A mask takes 40 ms, and the rest of a pass 10 ms. `quiet` would have 20 steps/s unbilled."""
    machine = Machine(0.01, 0.0, masks={"greedy": 0.04})
    machine.run(10, {"quiet": 1, "greedy": 1}, EVEN)
    # In 1 s, x passes serve both and y passes serve only `quiet`: 0.05 x + 0.01 y = 1. The virtual
    # times are equal: 0.045 x = 0.005 x + 0.01 y. So x = 11 and y = 44.
    assert machine.steps["quiet"] == pytest.approx(555, rel=0.05)
    assert machine.steps["greedy"] == pytest.approx(111, rel=0.05)


def test_the_first_mask_of_a_prompt_is_charged_to_its_tenant() -> None:
    time, weights = TenantTime(), {"quiet": 1.0, "greedy": 1.0}
    time.choose_throttled(weights)
    time.charge_prefill([chunk("quiet"), chunk("greedy", 1.0, 0.04)], 0.05)
    assert time.choose_throttled(weights) == {"greedy"}  # 45 ms and 5 ms, not 25 ms each


def test_a_tenant_that_is_preempted_after_its_drafts_does_not_break_the_charge() -> None:
    time = TenantTime()
    time.choose_throttled(EVEN)
    time.choose_throttled({"quiet": 1.0})  # all requests of `greedy` were preempted
    time.charge_requests([chunk("quiet").request, chunk("greedy").request], 0.1)
    assert time._virtual == {"quiet": 0.05}


def test_tenants_that_do_not_slow_each_other_are_never_throttled() -> None:
    machine = Machine(0.02, 0.0)
    machine.run(5, {"quiet": 1}, {"quiet": 1.0})  # measures a pass of another size
    machine.run(10, {"quiet": 1, "greedy": 31}, EVEN)
    assert min(machine.steps.values()) >= 0.95 * 10 / 0.02


def test_time_is_divided_by_weight() -> None:
    machine = Machine(0.0, 0.01)
    machine.run(10, {"quiet": 8, "greedy": 8}, {"quiet": 3.0, "greedy": 1.0})
    assert machine.steps["quiet"] == pytest.approx(3 * machine.steps["greedy"], rel=0.05)


def test_a_tenant_has_no_claim_on_time_that_it_left_unused() -> None:
    machine = Machine(0.0, 0.01)
    machine.run(10, {"a": 4, "b": 4}, {"a": 1.0, "b": 1.0})
    machine.run(1, {"a": 4, "b": 4, "new": 4}, {"a": 1.0, "b": 1.0, "new": 1.0})
    assert machine.steps["new"] <= 2 * machine.steps["a"]


def test_a_tenant_does_not_escape_its_debt_by_leaving() -> None:
    time = TenantTime()
    assert time.choose_throttled(EVEN) == set()
    time.charge_decode([chunk("greedy")], 1.0)
    time.choose_throttled({"quiet": 1.0})
    assert time.choose_throttled(EVEN) == {"greedy"}


def test_a_second_choice_of_the_same_step_changes_nothing() -> None:
    time = TenantTime()
    for weights in (EVEN, {"quiet": 1.0}, {**EVEN, "new": 1.0}):
        first = time.choose_throttled(weights)
        state = dict(time._virtual)
        assert time.choose_throttled(weights) == first
        assert time._virtual == state
        time.charge_decode([chunk(tenant) for tenant in weights], 0.1 * len(weights))


@pytest.mark.parametrize("call", range(1, 4))
def test_an_interrupted_choice_can_be_repeated(call: int) -> None:
    class Interrupted(dict[str, float]):
        """Weights that are interrupted when they are read for the `call`-th time."""

        count = 0

        def __iter__(self) -> Iterator[str]:
            self.count += 1
            if self.count == call:
                raise KeyboardInterrupt
            return super().__iter__()

    time = TenantTime()
    time.choose_throttled({"a": 1.0})
    with pytest.raises(KeyboardInterrupt):
        time.choose_throttled(Interrupted({"b": 1.0}))
    assert time.choose_throttled(EVEN | {"a": 1.0}) == set()


def test_tenants_that_have_gone_are_forgotten() -> None:
    time = TenantTime()
    for number in range(1000):
        time.choose_throttled({"stays": 1.0, str(number): 1.0})
        time.charge_decode([chunk("stays"), chunk(str(number))], 0.01)
    assert len(time._virtual) < 10


def test_the_line_of_pass_times_is_fitted() -> None:
    line = PassTime()
    for rows in (1, 32, 8, 32, 1, 4):
        line.observe(rows, 0.01 + 0.001 * rows)
    assert line.seconds(16) == pytest.approx(0.026)
    proportional = PassTime()
    proportional.observe(32, 0.32)
    assert proportional.seconds(1) == pytest.approx(0.01)


def add(
    world: SchedulerMemory, tenant: str, prompt: int = 1, weight: float = 1.0, group: str = ""
) -> RequestState:
    return world.add(
        Request([world.arrivals] * prompt, 400, tenant=tenant, weight=weight, group=group)
    )


@pytest.mark.parametrize("charge", [Scheduler.charge_prefill, Scheduler.charge_decode])
def test_a_tenant_waits_after_a_long_pass(
    charge: Callable[[Scheduler, Sequence[Chunk], float], None],
) -> None:
    world = SchedulerMemory(num_pages=500)
    slow, quick = add(world, "slow"), add(world, "quick")
    world.step(8)
    charge(world.scheduler, [Chunk(slow, 0, 1, [0], 1)], 1.0)
    assert world.scheduler.choose_served() == (quick,)


def test_tenants_without_a_free_seat_take_none_from_each_other() -> None:
    """Each of three tenants has a quota of one seat, and there are two."""
    world = SchedulerMemory(num_pages=500, max_num_seqs=2)
    for tenant in "abc":
        add(world, tenant)
    for _ in range(5):
        world.step(8)
    assert world.scheduler.preemptions == 0


def test_a_new_tenant_takes_its_quota_of_seats_at_once() -> None:
    world = SchedulerMemory(num_pages=500, max_num_seqs=4)
    greedy = [add(world, "greedy") for _ in range(20)]
    world.step(8)
    quiet = [add(world, "quiet") for _ in range(3)]
    world.step(8)
    assert [bool(each.block_table) for each in quiet] == [True, True, False]
    assert [bool(each.block_table) for each in greedy[:4]] == [True, True, False, False]
    for _ in range(20):
        world.step(8)
    assert world.scheduler.preemptions == 2, "a seat was taken back"


def test_seats_are_divided_by_weight() -> None:
    world = SchedulerMemory(num_pages=500, max_num_seqs=8)
    for _ in range(8):
        add(world, "small")
    world.step(8)
    for _ in range(8):
        add(world, "large", weight=3.0)
    world.step(8)
    tenants = [each.tenant for each in world.scheduler.running]
    assert (tenants.count("small"), tenants.count("large")) == (2, 6)


def test_free_seats_are_divided_by_weight() -> None:
    world = SchedulerMemory(num_pages=500, max_num_seqs=8)
    for _ in range(8):
        add(world, "small")
        add(world, "large", weight=3.0)
    world.step(8)
    tenants = [each.tenant for each in world.scheduler.running]
    assert (tenants.count("small"), tenants.count("large")) == (2, 6)
    assert world.scheduler.preemptions == 0


def test_a_new_tenant_takes_its_quota_of_pages_at_once() -> None:
    world = SchedulerMemory(num_pages=60, max_num_seqs=8)
    greedy = [add(world, "greedy", prompt=50 + each) for each in range(4)]
    world.step(500)
    assert sum(len(each.block_table) for each in greedy) > 50
    quiet = add(world, "quiet", prompt=90)
    world.step(500)
    assert quiet.generated == 1
    large = add(world, "other", prompt=150)
    for _ in range(5):
        world.step(500)
        assert not large.block_table, "a tenant took more than its quota from others"


def test_tenants_get_equal_parts_of_the_prefill() -> None:
    world = SchedulerMemory(num_pages=500)
    greedy = [add(world, "greedy", prompt=100 + each) for each in range(3)]
    world.step(8)
    quiet = add(world, "quiet", prompt=31)
    for _ in range(4):
        world.step(16)
    assert quiet.generated
    assert sum(each.num_computed_tokens for each in greedy) >= 32


def test_groups_of_a_tenant_take_turns() -> None:
    world = SchedulerMemory(num_pages=500, max_num_seqs=4)
    many = [add(world, "a", prompt=1 + each, group="many") for each in range(10)]
    single = add(world, "a", group="single")
    world.step(8)
    assert single.block_table
    assert sum(bool(each.block_table) for each in many) == 3


def test_no_seat_is_taken_for_a_request_that_gets_no_pages() -> None:
    world = SchedulerMemory(num_pages=100, max_num_seqs=4)
    greedy = [add(world, "greedy", prompt=60) for _ in range(4)]
    for _ in range(8):
        world.step(64)
    large = add(world, "quiet", prompt=240)  # 60 pages, more than half of all
    for _ in range(20):
        world.step(64)
    assert world.scheduler.preemptions == 0
    assert all(each.block_table for each in greedy)
    assert not large.block_table


def test_tenants_do_not_take_the_same_pages_from_each_other_in_turn() -> None:
    world = SchedulerMemory(num_pages=100, max_num_seqs=8)
    for _ in range(5):
        add(world, "greedy", prompt=60)
    for _ in range(12):
        world.step(64)
    large = add(world, "quiet", prompt=199)  # its half of the pages, which it soon exceeds
    for _ in range(15):
        world.step(64)
    assert world.scheduler.preemptions == 3
    assert large.block_table


def test_a_full_queue_is_taken_from_the_longest_queue() -> None:
    world = SchedulerMemory(num_pages=500, max_num_seqs=1)
    greedy = [add(world, "greedy") for _ in range(5)]
    assert world.scheduler.displaced_by("quiet", 5) is None
    assert world.scheduler.displaced_by("quiet", 4) is greedy[-1]
    with pytest.raises(EngineFullError, match="5 requests are waiting"):
        world.scheduler.displaced_by("greedy", 4)
    for _ in range(4):
        add(world, "quiet")
    with pytest.raises(EngineFullError):
        world.scheduler.displaced_by("quiet", 8)
    assert world.scheduler.displaced_by("third", 8) is greedy[-1]
