"""Policy alone: sequences whose tokens are numbers, and nobody who computes anything."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tinyllm_engine.kv.block_manager import BlockManager
from tinyllm_engine.request import Request
from tinyllm_engine.schedule.scheduler import DECODED_AGAIN, PATIENCE, Scheduler
from tinyllm_engine.schedule.step import Plan
from tinyllm_engine.sequence import Sequence

PAGE = 4


class World:
    """A scheduler, and memory in which each slot says whose token was written there last."""

    def __init__(self, pages: int, max_running: int = 4) -> None:
        self.pages = BlockManager(pages, PAGE)
        self.scheduler = Scheduler(self.pages, max_running)
        self.slots: dict[int, tuple[int, ...]] = {}  # the text up to the token written there
        self.arrivals = 0
        self.last = Plan()

    def add(self, prompt: list[int], max_tokens: int, priority: int = 0) -> Sequence:
        request = Request(prompt, max_tokens, priority=priority)
        sequence = Sequence(request, self.arrivals, list(prompt))
        self.arrivals += 1
        self.scheduler.add(sequence)
        return sequence

    def step(self, budget: int) -> list[Sequence]:
        """Compute a plan, looking closely; who has ended."""
        plan = self.last = self.scheduler.plan(budget)
        assert sum(chunk.length for chunk in plan.prefill) <= budget
        for source, target in plan.copies:
            for place in range(PAGE):
                if source * PAGE + place in self.slots:
                    self.slots[target * PAGE + place] = self.slots[source * PAGE + place]
        for chunk in [*plan.prefill, *plan.decode]:
            assert chunk.start < chunk.stop
        for chunk in plan.prefill:
            assert chunk.stop <= chunk.sequence.prefill_end
            self._write(chunk.sequence, chunk.start, chunk.stop)
            self.scheduler.advance(chunk.sequence, chunk.stop)
        ended = []
        for chunk in plan.decode:
            sequence = chunk.sequence
            assert chunk.start == sequence.computed >= sequence.prefill_end
            self._write(sequence, chunk.start, chunk.stop)
            self._read(sequence, chunk.stop)
            self.scheduler.advance(sequence, chunk.stop)
            if chunk.chooses:
                sequence.tokens.append(random.Random(str(sequence.tokens)).randrange(3))
            if sequence.generated == sequence.request.max_tokens:
                self.scheduler.remove(sequence)
                ended.append(sequence)
        return ended

    def _write(self, sequence: Sequence, start: int, stop: int) -> None:
        for at in range(start, stop):
            page = sequence.pages[at // PAGE]
            assert not self.pages.is_shared(page), "a page that others read is written"
            self.slots[page * PAGE + at % PAGE] = tuple(sequence.tokens[: at + 1])

    def _read(self, sequence: Sequence, stop: int) -> None:
        for at in range(stop):
            slot = sequence.pages[at // PAGE] * PAGE + at % PAGE
            assert self.slots[slot] == tuple(sequence.tokens[: at + 1]), "somebody else's token"


class Schedules(RuleBasedStateMachine):
    """Arrivals, cancels and steps in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(pages=9)
        self.live: list[Sequence] = []

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
        for sequence in self.world.step(budget):
            self.live.remove(sequence)

    @invariant()
    def pages_are_those_of_the_running(self) -> None:
        held = {page for sequence in self.world.scheduler.running for page in sequence.pages}
        assert self.world.pages.available == self.world.pages.num_pages - len(held)
        assert all(not s.pages for s in self.live if s not in self.world.scheduler.running)

    def teardown(self) -> None:
        for _ in range(2000):
            if not self.live:
                break
            self.step(6)
        assert not self.live, "somebody's turn never comes"
        assert self.world.pages.available == self.world.pages.num_pages


Schedules.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestSchedules = Schedules.TestCase


def run(world: World, budget: int = 8, steps: int = 500) -> list[Sequence]:
    """Everybody who ends, in the order in which they do."""
    return [sequence for _ in range(steps) for sequence in world.step(budget)]


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


def test_every_step_decodes_for_all_that_decode() -> None:
    world = World(pages=200)
    decoding = [world.add([i], 50) for i in range(3)]
    world.add([9] * 300, 1)
    for step in range(20):
        world.step(8)
        assert [sequence.generated for sequence in decoding] == [step + 1] * 3


def test_a_level_of_priority_overtakes_so_many_and_no_more() -> None:
    world = World(pages=500, max_running=1)
    first = world.add([1], 1)
    urgent = [world.add([2, i], 1, priority=-1) for i in range(PATIENCE + 5)]
    order = run(world)
    assert order.index(first) == PATIENCE - 1
    assert order[: PATIENCE - 1] == urgent[: PATIENCE - 1]


def test_who_is_last_in_rank_gives_pages_back_and_gets_all_its_tokens_in_the_end() -> None:
    world = World(pages=6)
    first, second = world.add([1] * 7, 12), world.add([2] * 7, 12)
    assert run(world) == [first, second]
    assert world.scheduler.preemptions > 0
    assert second.generated == 12


def test_tokens_are_decoded_again_several_at_a_time_after_a_preemption() -> None:
    world = World(pages=60)
    world.scheduler.prefix_cache = False
    sequence = world.add([1] * 3, 150)
    for _ in range(100):
        world.step(8)
    world.scheduler._preempt(sequence)
    tokens = list(sequence.tokens)
    steps = 0
    while sequence.tokens == tokens:
        world.step(8)
        steps += 1
    assert steps == -(-101 // DECODED_AGAIN)


def test_a_prompt_that_another_is_computing_is_waited_for_and_shared() -> None:
    world = World(pages=60)
    twins = [world.add([1] * 33, 2) for _ in range(3)]
    run(world, budget=16)
    assert [sequence.cached for sequence in twins] == [0, 32, 32]


def test_a_hit_of_the_whole_prompt_copies_the_last_page() -> None:
    world = World(pages=60)
    first = world.add([1] * 16, 6)
    assert run(world) == [first]
    second = world.add([1] * 16, 2)
    world.step(8)
    assert world.last.copies
    assert second.cached == 15
    assert run(world) == [second]
