"""Requests share prefixes that end at a snapshot, and drafts have slots of their own."""

import pytest
from tinyllm_engine.request import Request, RequestState
from tinyllm_engine.schedule.state_slots import SNAPSHOT_INTERVAL
from tinyllm_engine.testing import PAGE, SchedulerMemory


def make(states: int = 4, snapshots: int = 8, num_pages: int = 400) -> SchedulerMemory:
    return SchedulerMemory(num_pages, states=states, snapshots=snapshots)


def add(world: SchedulerMemory, prompt: list[int], max_tokens: int = 1) -> RequestState:
    return world.add(Request(prompt, max_tokens))


def run(world: SchedulerMemory, *, budget: int = 64, num_speculative_tokens: int = 0) -> None:
    while world.scheduler.has_requests:
        world.step(budget, num_speculative_tokens)


def text(length: int, last: int = 0) -> list[int]:
    return [*range(1000, 1000 + length - 1), last]


@pytest.mark.parametrize("budget", [2, 5, 64])
@pytest.mark.parametrize("length", [1, PAGE, PAGE + 1, 5 * PAGE, 5 * PAGE + 1, 5 * PAGE + 3])
def test_an_equal_prompt_starts_at_the_last_end_of_a_page(length: int, budget: int) -> None:
    world = make()
    first = add(world, text(length))
    run(world, budget=budget)
    second = add(world, text(length))
    run(world, budget=budget)
    # At least the last token is computed again.
    assert [first.num_cached_tokens, second.num_cached_tokens] == [0, (length - 1) // PAGE * PAGE]


def test_the_next_prompt_may_differ_in_the_tokens_that_open_the_answer() -> None:
    world = make()
    add(world, [*text(45), *[1] * 9])
    run(world)
    second = add(world, [*text(45), *[2] * 30])
    run(world)
    assert second.num_cached_tokens == 36  # 54 tokens without the last 16, in whole pages


def test_the_third_prompt_starts_where_the_first_two_branch_off() -> None:
    world, cached = make(), []
    for number in range(3):
        request = add(world, [*text(5 * PAGE), *[2000 + number] * 40])
        run(world)
        cached.append(request.num_cached_tokens)
    # The second prompt finds pages with the common tokens but no snapshot, and saves one.
    assert cached == [0, 0, 5 * PAGE]


def test_prompts_that_arrive_together_branch_off_the_first_one() -> None:
    world = make()
    requests = [add(world, [*text(5 * PAGE), *[2000 + number] * 40]) for number in range(4)]
    run(world, budget=7)
    assert [request.num_cached_tokens for request in requests] == [0] + [5 * PAGE] * 3


def test_equal_prompts_that_arrive_together_fork_one_snapshot() -> None:
    world = make()
    requests = [add(world, text(22), 9) for _ in range(4)]
    run(world, budget=7, num_speculative_tokens=2)
    assert [request.num_cached_tokens for request in requests] == [0, 20, 20, 20]
    assert len({tuple(request.tokens) for request in requests}) == 1


def test_an_answer_is_prefilled_when_the_next_prompt_contains_it() -> None:
    world = make()
    first = add(world, text(10), 8)
    run(world)
    second = add(world, [*first.tokens, 1, 2, 3], 1)
    run(world)
    # `SchedulerMemory` fails if a page of decoded tokens is shared.
    assert second.num_cached_tokens == 8
    third = add(world, [*first.tokens, 1, 2, 3], 1)
    run(world)
    assert third.num_cached_tokens == 20


@pytest.mark.parametrize("budget", [pytest.param(100, marks=pytest.mark.exhaustive), 4096])
def test_a_long_prompt_has_snapshots_at_intervals(budget: int) -> None:
    world = make(snapshots=40, num_pages=2000)
    add(world, text(4 * SNAPSHOT_INTERVAL))
    run(world, budget=budget)
    for length in (3 * SNAPSHOT_INTERVAL + 1, 2 * SNAPSHOT_INTERVAL - 1, SNAPSHOT_INTERVAL + 5):
        request = add(world, [*text(4 * SNAPSHOT_INTERVAL)[:length], 7])
        run(world, budget=budget)
        assert request.num_cached_tokens == length // SNAPSHOT_INTERVAL * SNAPSHOT_INTERVAL


@pytest.mark.exhaustive
def test_the_intervals_of_a_prompt_take_a_quarter_of_the_snapshots() -> None:
    world = make(snapshots=8, num_pages=4000)
    kept = [add(world, [number] * 9) for number in range(5)]
    run(world)
    add(world, text(9 * SNAPSHOT_INTERVAL))
    run(world, budget=4096)
    assert world.states is not None
    assert world.states.snapshots.count == 8  # 5 short prompts, one interval, two at the end
    again = [add(world, list(request.prompt)) for request in kept]
    run(world)
    assert [request.num_cached_tokens for request in again] == [8] * 5


def test_a_preempted_request_resumes_at_a_snapshot() -> None:
    world = make()
    request = add(world, text(22), 30)
    for _ in range(9):
        world.step(64)
    tokens = list(request.tokens)
    world.scheduler._preempt(request)
    assert request.slots is None
    world.step(64)
    assert request.num_computed_tokens > 20
    assert world.last.prefill[0].start == 20
    run(world)
    assert request.tokens[: len(tokens)] == tokens


def test_without_free_slots_a_request_has_fewer_draft_tokens() -> None:
    world = make(states=5)
    requests = [add(world, [number + 1] * 3, 40) for number in range(2)]
    world.step(64)
    drafted = []
    while world.scheduler.has_requests:
        world.step(64, 3)
        drafted += [chunk.num_samples - 1 for chunk in world.last.decode]
        assert sum(len(chunk.saves) for chunk in world.last.decode) <= 5
    assert {0, 3} <= set(drafted)
    assert all(request.generated == 40 for request in requests)


def test_slots_limit_the_running_requests() -> None:
    world = make(states=2)
    requests = [add(world, [number] * 6, 5) for number in range(4)]
    world.step(64)
    assert len(world.scheduler.running) == 2
    run(world)
    assert all(request.generated == 5 for request in requests)


def test_without_snapshots_no_prefix_is_shared() -> None:
    world = make(snapshots=0)
    requests = [add(world, text(22)) for _ in range(3)]
    world.step(7)
    assert world.scheduler.waiting == 0  # no request waits for the prefix of another
    run(world, budget=7)
    assert [request.num_cached_tokens for request in requests] == [0, 0, 0]


def test_cancelled_requests_leave_no_snapshot_held() -> None:
    world = make()
    for length in (9, 30, 30):
        add(world, text(length), 20)
    for _ in range(3):
        world.step(6, 2)
    for request in world.scheduler.running:
        world.scheduler.remove(request)
    assert world.states is not None
    assert world.states.used == world.states.snapshots.held == 0
