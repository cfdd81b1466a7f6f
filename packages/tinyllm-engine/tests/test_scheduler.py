"""The scheduler's policy, tested without a model: random numbers stand for tokens."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tinyllm_engine.request import Request, RequestState
from tinyllm_engine.schedule.prompt_tokens import SCORED_TOKENS
from tinyllm_engine.schedule.scheduler import DECODED_AGAIN, PATIENCE
from tinyllm_engine.testing import SchedulerMemory


def add(
    world: SchedulerMemory,
    prompt: list[int],
    max_tokens: int,
    priority: int = 0,
    tenant: str = "",
) -> RequestState:
    return world.add(Request(prompt, max_tokens, priority=priority, tenant=tenant))


class Schedules(RuleBasedStateMachine):
    """Arrivals, cancellations, failures and steps in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = self.make()
        self.live: list[RequestState] = []

    def make(self) -> SchedulerMemory:
        return SchedulerMemory(num_pages=9)

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        max_tokens=st.integers(1, 12),
        priority=st.integers(-1, 1),
        tenant=st.sampled_from("abc"),
    )
    def arrive(self, prompt: list[int], max_tokens: int, priority: int, tenant: str) -> None:
        self.live.append(add(self.world, prompt, max_tokens, priority, tenant))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.world.scheduler.remove(self.live.pop(data.draw(st.integers(0, len(self.live) - 1))))

    @rule(
        budget=st.integers(2, 12),
        num_speculative_tokens=st.integers(0, 3),
        seconds=st.floats(0, 0.1),
    )
    def step(self, budget: int, num_speculative_tokens: int = 0, seconds: float = 0.03) -> None:
        ended = self.world.step(budget, num_speculative_tokens)
        self.world.scheduler.charge_prefill(self.world.last.prefill, seconds)
        self.world.scheduler.charge_decode(self.world.last.decode, seconds)
        for request in ended:
            self.live.remove(request)

    @invariant()
    def pages_are_held_by_running_requests(self) -> None:
        held = {page for request in self.world.scheduler.running for page in request.block_table}
        assert self.world.block_manager.available == self.world.block_manager.num_pages - len(held)
        waiting = [each for each in self.live if each not in self.world.scheduler.running]
        assert not any(each.block_table or each.slots for each in waiting)

    @invariant()
    def slots_are_held_by_running_requests(self) -> None:
        states = self.world.states
        if states is not None:
            slots = [each.slots for each in self.world.scheduler.running if each.slots]
            assert all(len(each.own) == 1 for each in slots)
            own = [each.own[0] for each in slots]
            held = {slot for each in slots for slot in each.held.values()}
            assert len({*own}) == len(own)
            assert states.used == len(own)
            assert states.snapshots.held == len(held)
            assert held <= {*states.snapshots.registered.values()}

    @rule()
    def fail(self) -> None:
        running = set(self.world.scheduler.running)
        self.world.slots.clear()
        self.world.saved.clear()
        assert set(self.world.scheduler.reset()) == running
        assert not self.world.scheduler.running
        assert self.world.block_manager.cached == 0

    def teardown(self) -> None:
        for _ in range(2000):
            if not self.live:
                break
            self.step(6)
        assert not self.live, "a request never gets its turn"
        assert self.world.block_manager.available == self.world.block_manager.num_pages
        states = self.world.states
        assert states is None or states.used == states.snapshots.held == 0


class SchedulesWithStates(Schedules):
    """The same with recurrent state: few slots for requests, and few for snapshots."""

    def make(self) -> SchedulerMemory:
        return SchedulerMemory(num_pages=9, states=5, snapshots=3)


for machine in (Schedules, SchedulesWithStates):
    machine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestSchedules = pytest.mark.usefixtures("unchecked")(Schedules.TestCase)
TestSchedulesWithStates = pytest.mark.usefixtures("unchecked")(SchedulesWithStates.TestCase)


def run(world: SchedulerMemory, budget: int = 8, steps: int = 500) -> list[RequestState]:
    """Return the finished requests in order."""
    return [request for _ in range(steps) for request in world.step(budget)]


def test_a_short_prompt_does_not_wait_for_a_long_one_and_the_long_one_goes_on() -> None:
    world = SchedulerMemory(num_pages=200)
    long = add(world, [1] * 400, 1)
    world.step(8)
    shorts = [add(world, [2 + i, 3, 4, 5], 1) for i in range(2)]
    before = long.num_computed_tokens
    world.step(8)
    assert long.num_computed_tokens - before >= 4
    assert shorts[0].generated == 1
    assert run(world) == [shorts[1], long]


def test_of_several_prompts_behind_a_long_one_the_shortest_comes_first() -> None:
    world = SchedulerMemory(num_pages=200)
    long = add(world, [1] * 400, 1)
    world.step(8)
    longer, shorter = add(world, [2] * 30, 1), add(world, [3] * 10, 1)
    assert run(world) == [shorter, longer, long]


def test_short_prompts_in_a_stream_do_not_starve_a_long_one() -> None:
    world = SchedulerMemory(num_pages=200)
    long = add(world, [1] * 101, 1)
    for step in range(100 // 4 + 1):
        add(world, [2, step, 3, 4, 5], 1)
        if long in world.step(8):
            return
    pytest.fail(f"{long.num_computed_tokens} of 100 tokens after {step} steps")


def test_every_step_decodes_all_decoding_requests() -> None:
    world = SchedulerMemory(num_pages=200)
    decoding = [add(world, [i], 50) for i in range(3)]
    add(world, [9] * 300, 1)
    for step in range(20):
        world.step(8)
        assert [request.generated for request in decoding] == [step + 1] * 3


def test_prompts_may_take_longer_only_while_no_request_decodes() -> None:
    world = SchedulerMemory(num_pages=40)
    add(world, [1] * 4, 8)
    long = add(world, [2] * 60, 1)
    step = world.scheduler.schedule(8, 20)
    assert sum(len(chunk.tokens) for chunk in step.prefill) == 20
    world.step(8)  # the short prompt ends in this step
    world.step(8)
    step = world.scheduler.schedule(8, 20)
    assert len(step.decode) == 1
    assert sum(len(chunk.tokens) for chunk in step.prefill) == 8
    assert long.is_prefilling


@pytest.mark.parametrize("tenant", ["a", "b"])
def test_a_prompt_with_log_probabilities_leaves_the_budget_to_others(tenant: str) -> None:
    world = SchedulerMemory(num_pages=9000)
    scored = [world.add(Request([n] * 4000, 0, prompt_logprobs=True, tenant="a")) for n in (1, 2)]
    plain = add(world, [3] * 4000, 1, tenant=tenant)
    step = world.scheduler.schedule(1000)
    lengths = {chunk.request: len(chunk.tokens) for chunk in step.prefill}
    assert sum(lengths.pop(request, 0) for request in scored) == SCORED_TOKENS
    assert lengths == {plain: 1000 - SCORED_TOKENS}


def test_a_level_of_priority_overtakes_a_limited_number_of_requests() -> None:
    world = SchedulerMemory(num_pages=500, max_num_seqs=1)
    first = add(world, [1], 1)
    urgent = [add(world, [2, i], 1, priority=-1) for i in range(PATIENCE + 5)]
    order = run(world)
    assert order.index(first) == PATIENCE - 1
    assert order[: PATIENCE - 1] == urgent[: PATIENCE - 1]


def test_the_last_in_rank_is_preempted_and_gets_all_its_tokens_in_the_end() -> None:
    world = SchedulerMemory(num_pages=6)
    first, second = add(world, [1] * 7, 12), add(world, [2] * 7, 12)
    assert run(world) == [first, second]
    assert world.scheduler.preemptions > 0
    assert second.generated == 12


def test_tokens_are_decoded_again_several_at_a_time_after_a_preemption() -> None:
    world = SchedulerMemory(num_pages=60)
    world.scheduler.enable_prefix_caching = False
    request = add(world, [1] * 3, 150)
    for _ in range(100):
        world.step(8)
    world.scheduler._preempt(request)
    tokens = list(request.tokens)
    steps = 0
    while request.tokens == tokens:
        world.step(8)
        steps += 1
    assert steps == 1 + -(-100 // DECODED_AGAIN)  # one step for the prompt


def test_a_step_decodes_a_limited_number_of_tokens_again_after_a_failed_step() -> None:
    world = SchedulerMemory(num_pages=900, max_num_seqs=8)
    requests = [add(world, [n] * 3, 200) for n in range(8)]
    while not all(request.generated > 100 for request in requests):
        world.step(24)
    world.scheduler.reset()
    before, rows = [request.generated for request in requests], []
    while before == [request.generated for request in requests]:
        world.step(24)
        rows.append([len(chunk.tokens) for chunk in world.last.decode])
    assert rows[0] == []
    assert rows[1] == [DECODED_AGAIN, *[1] * 7]  # the first in queue order is ready first
    assert all(sum(each) <= DECODED_AGAIN + 7 for each in rows)


def test_a_prefix_that_is_being_computed_is_waited_for_and_shared() -> None:
    world = SchedulerMemory(num_pages=60)
    twins = [add(world, [1] * 33, 2) for _ in range(3)]
    run(world, budget=16)
    assert [request.num_cached_tokens for request in twins] == [0, 32, 32]


def test_a_hit_of_the_whole_prompt_copies_the_last_page() -> None:
    world = SchedulerMemory(num_pages=60)
    first = add(world, [1] * 16, 6)
    assert run(world) == [first]
    second = add(world, [1] * 16, 2)
    world.step(8)
    assert world.last.copies
    assert second.num_cached_tokens == 15
    assert run(world) == [second]
