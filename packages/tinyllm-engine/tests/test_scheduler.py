"""The scheduler's policy, tested without a model: random numbers stand for tokens."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tinyllm_engine.kv.block_manager import BlockManager
from tinyllm_engine.request import Request, RequestState
from tinyllm_engine.schedule.scheduler import DECODED_AGAIN, PATIENCE, Scheduler
from tinyllm_engine.schedule.step import Step
from tinyllm_engine.testing import state_without_model

PAGE = 4


class World:
    """A scheduler, and a memory in which a slot holds all tokens up to the one written there."""

    def __init__(self, pages: int, max_running: int = 4) -> None:
        self.pages = BlockManager(pages, PAGE)
        self.scheduler = Scheduler(self.pages, max_running)
        self.slots: dict[int, tuple[int, ...]] = {}
        self.arrivals = 0
        self.last = Step()

    def add(self, prompt: list[int], max_tokens: int, priority: int = 0) -> RequestState:
        request = state_without_model(Request(prompt, max_tokens, priority=priority), self.arrivals)
        self.arrivals += 1
        self.scheduler.add(request)
        return request

    def step(self, budget: int) -> list[RequestState]:
        """Compute a step with checks; return the finished requests."""
        step = self.last = self.scheduler.schedule(budget)
        assert sum(len(chunk.tokens) for chunk in step.prefill) <= budget
        for source, target in step.copies:
            for place in range(PAGE):
                if source * PAGE + place in self.slots:
                    self.slots[target * PAGE + place] = self.slots[source * PAGE + place]
        for chunk in [*step.prefill, *step.decode]:
            assert chunk.start < chunk.stop
            assert chunk.tokens == chunk.request.tokens[chunk.start : chunk.stop]
        for chunk in step.prefill:
            assert chunk.stop <= chunk.request.prefill_end
            self._write(chunk.request, chunk.start, chunk.stop)
            self.scheduler.update(chunk.request, chunk.stop)
        ended = []
        for chunk in step.decode:
            request = chunk.request
            assert chunk.start == request.computed >= request.prefill_end
            self._write(request, chunk.start, chunk.stop)
            self._read(request, chunk.stop)
            self.scheduler.update(request, chunk.stop)
            if chunk.choices:
                request.tokens.append(random.Random(str(request.tokens)).randrange(3))
            if request.generated == request.request.max_tokens:
                self.scheduler.remove(request)
                ended.append(request)
        return ended

    def _write(self, request: RequestState, start: int, stop: int) -> None:
        for at in range(start, stop):
            page = request.pages[at // PAGE]
            assert not self.pages.is_shared(page), "a shared page is written"
            self.slots[page * PAGE + at % PAGE] = tuple(request.tokens[: at + 1])

    def _read(self, request: RequestState, stop: int) -> None:
        for at in range(stop):
            slot = request.pages[at // PAGE] * PAGE + at % PAGE
            assert self.slots[slot] == tuple(request.tokens[: at + 1]), "a token of another request"


class Schedules(RuleBasedStateMachine):
    """Arrivals, cancellations, failures and steps in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(pages=9)
        self.live: list[RequestState] = []

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        max_tokens=st.integers(1, 12),
        priority=st.integers(-1, 1),
    )
    def arrive(self, prompt: list[int], max_tokens: int, priority: int) -> None:
        self.live.append(self.world.add(prompt, max_tokens, priority))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.world.scheduler.remove(self.live.pop(data.draw(st.integers(0, len(self.live) - 1))))

    @rule(budget=st.integers(2, 12))
    def step(self, budget: int) -> None:
        for request in self.world.step(budget):
            self.live.remove(request)

    @invariant()
    def pages_are_held_by_running_requests(self) -> None:
        held = {page for request in self.world.scheduler.running for page in request.pages}
        assert self.world.pages.available == self.world.pages.num_pages - len(held)
        assert all(not s.pages for s in self.live if s not in self.world.scheduler.running)

    @rule()
    def fail(self) -> None:
        running = set(self.world.scheduler.running)
        self.world.slots.clear()
        assert set(self.world.scheduler.reset()) == running
        assert not self.world.scheduler.running
        assert self.world.pages.cached == 0

    def teardown(self) -> None:
        for _ in range(2000):
            if not self.live:
                break
            self.step(6)
        assert not self.live, "a request never gets its turn"
        assert self.world.pages.available == self.world.pages.num_pages


Schedules.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestSchedules = Schedules.TestCase


def run(world: World, budget: int = 8, steps: int = 500) -> list[RequestState]:
    """Return the finished requests in order."""
    return [request for _ in range(steps) for request in world.step(budget)]


def test_a_short_prompt_does_not_wait_for_a_long_one_and_the_long_one_goes_on() -> None:
    world = World(pages=200)
    long = world.add([1] * 400, 1)
    world.step(8)
    shorts = [world.add([2 + i, 3, 4, 5, 6], 1) for i in range(2)]
    before = long.computed
    world.step(8)
    assert long.computed - before >= 4
    assert shorts[0].generated == 1
    assert run(world) == [shorts[1], long]


def test_of_several_prompts_behind_a_long_one_the_shortest_comes_first() -> None:
    world = World(pages=200)
    long = world.add([1] * 400, 1)
    world.step(8)
    longer, shorter = world.add([2] * 30, 1), world.add([3] * 10, 1)
    assert run(world) == [shorter, longer, long]


def test_short_prompts_in_a_stream_do_not_starve_a_long_one() -> None:
    world = World(pages=200)
    long = world.add([1] * 101, 1)
    for step in range(100 // 4 + 1):
        world.add([2, step, 3, 4, 5], 1)
        if long in world.step(8):
            return
    pytest.fail(f"{long.computed} of 100 tokens after {step} steps")


def test_every_step_decodes_all_decoding_requests() -> None:
    world = World(pages=200)
    decoding = [world.add([i], 50) for i in range(3)]
    world.add([9] * 300, 1)
    for step in range(20):
        world.step(8)
        assert [request.generated for request in decoding] == [step + 1] * 3


def test_a_level_of_priority_overtakes_a_limited_number_of_requests() -> None:
    world = World(pages=500, max_running=1)
    first = world.add([1], 1)
    urgent = [world.add([2, i], 1, priority=-1) for i in range(PATIENCE + 5)]
    order = run(world)
    assert order.index(first) == PATIENCE - 1
    assert order[: PATIENCE - 1] == urgent[: PATIENCE - 1]


def test_the_last_in_rank_is_preempted_and_gets_all_its_tokens_in_the_end() -> None:
    world = World(pages=6)
    first, second = world.add([1] * 7, 12), world.add([2] * 7, 12)
    assert run(world) == [first, second]
    assert world.scheduler.preemptions > 0
    assert second.generated == 12


def test_tokens_are_decoded_again_several_at_a_time_after_a_preemption() -> None:
    world = World(pages=60)
    world.scheduler.prefix_cache = False
    request = world.add([1] * 3, 150)
    for _ in range(100):
        world.step(8)
    world.scheduler._preempt(request)
    tokens = list(request.tokens)
    steps = 0
    while request.tokens == tokens:
        world.step(8)
        steps += 1
    assert steps == -(-101 // DECODED_AGAIN)


def test_a_prefix_that_is_being_computed_is_waited_for_and_shared() -> None:
    world = World(pages=60)
    twins = [world.add([1] * 33, 2) for _ in range(3)]
    run(world, budget=16)
    assert [request.cached for request in twins] == [0, 32, 32]


def test_a_hit_of_the_whole_prompt_copies_the_last_page() -> None:
    world = World(pages=60)
    first = world.add([1] * 16, 6)
    assert run(world) == [first]
    second = world.add([1] * 16, 2)
    world.step(8)
    assert world.last.copies
    assert second.cached == 15
    assert run(world) == [second]
