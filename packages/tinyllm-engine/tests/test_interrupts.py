"""Ctrl-C while a step hands out its tokens."""

import signal
from collections import defaultdict
from itertools import count

import pytest
from tinyllm_engine import Engine, EngineSettings, Output, Request, RequestState, SampledToken
from tinyllm_engine.kv.block_manager import BlockManager
from tinyllm_engine.recovery import delayed_interrupt
from tinyllm_engine.schedule.scheduler import Scheduler
from tinyllm_qwen import Qwen, SamplingParams, Tokenizer

SAMPLED = SamplingParams(temperature=2.0, top_k=40, repetition_penalty=1.2, seed=4)


def tokens_of(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    """Return the tokens of the outputs, and go on after each interrupt."""
    handles = [engine.add(Request(prompt, 6, SAMPLED)) for prompt in prompts[:3]]
    outputs: dict[RequestState, list[Output]] = defaultdict(list)
    while engine.has_work:
        try:
            for owner, output in engine.step():
                outputs[owner].append(output)
        except KeyboardInterrupt:
            pass
    for handle in handles:
        assert [each.token for each in outputs[handle]] == handle.tokens[handle.num_prompt_tokens :]
    return [handle.tokens for handle in handles]


@pytest.mark.parametrize("when", [1, 2, 5, 9])
def test_an_interrupt_loses_no_token(
    pico: tuple[Qwen, Tokenizer],
    prompts: list[list[int]],
    when: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = EngineSettings(page_size=8)
    expected = tokens_of(Engine(*pico, settings), prompts)
    calls, accept = count(1), RequestState.accept

    def interrupted(request: RequestState, sampled: list[SampledToken]) -> list[Output]:
        if next(calls) == when:
            signal.raise_signal(signal.SIGINT)
        return accept(request, sampled)

    monkeypatch.setattr(RequestState, "accept", interrupted)
    assert tokens_of(Engine(*pico, settings), prompts) == expected
    assert next(calls) > when


def test_run_yields_the_outputs_of_an_interrupted_step(
    pico: tuple[Qwen, Tokenizer], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(*pico, EngineSettings(page_size=8))
    first, second = (engine.add(Request(prompt, 3, ignore_end=True)) for prompt in prompts[:2])
    calls, accept = count(1), RequestState.accept

    def interrupted(request: RequestState, sampled: list[SampledToken]) -> list[Output]:
        if request is second and next(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return accept(request, sampled)

    monkeypatch.setattr(RequestState, "accept", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(engine.run(first))
    tokens = [output.token for output in engine.run(second)]
    assert tokens == second.tokens[second.num_prompt_tokens :]
    assert len(tokens) == 3


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Scheduler, "remove"), (BlockManager, "free"), (RequestState, "finish")],
)
def test_an_interrupted_cancel_frees_the_pages(
    pico: tuple[Qwen, Tokenizer],
    prompts: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
) -> None:
    engine = Engine(*pico, EngineSettings(page_size=8))
    request = engine.add(Request(prompts[0], 40, ignore_end=True))
    engine.step()
    original = getattr(owner, name)

    def interrupted(*arguments: object) -> object:
        signal.raise_signal(signal.SIGINT)
        return original(*arguments)

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.cancel(request)
    assert request.finish_reason == "cancelled"
    assert not engine.has_work
    assert engine.stats.pages_used == 0


def test_a_second_interrupt_leaves_no_request_behind_that_run_gives_up(
    pico: tuple[Qwen, Tokenizer], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(*pico, EngineSettings(page_size=8))
    request = engine.add(Request(prompts[0], 40, ignore_end=True))

    remove = engine._scheduler.remove

    def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    def interrupted_remove(removed: RequestState) -> None:
        signal.raise_signal(signal.SIGINT)
        remove(removed)

    monkeypatch.setattr(engine._runner, "copy", interrupted)
    monkeypatch.setattr(engine._scheduler, "remove", interrupted_remove)
    with pytest.raises(KeyboardInterrupt):
        list(engine.run(request))
    assert request.finish_reason == "cancelled"
    assert not engine.has_work


def test_the_interrupt_comes_after_the_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 # what runs after the interrupt
        with delayed_interrupt():
            signal.raise_signal(signal.SIGINT)
            done.append("block")
        done.append("after")
    assert done == ["block"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
