"""Finished requests and closed engines are released."""

import gc
import threading
import weakref

import mlx.core as mx
import pytest
from tinyllm_engine import Engine, EngineSettings, Grammar, Request
from tinyllm_engine.grammar import worker
from tinyllm_qwen import Qwen, SamplingParams, Tokenizer

Model = tuple[Qwen, Tokenizer]


@pytest.mark.parametrize("tokens", [1, 30])
def test_a_finished_request_is_released(pico: Model, prompts: list[list[int]], tokens: int) -> None:
    engine = Engine(*pico, EngineSettings(page_size=8, num_speculative_tokens=3))
    handles = [engine.add(Request(prompt, tokens, ignore_end=True)) for prompt in prompts[:3]]
    engine.step()
    engine.cancel(handles[0])
    while engine.has_work:
        engine.step()
    released = [weakref.ref(handle) for handle in handles]
    del handles
    gc.collect()
    assert [each() for each in released] == [None] * 3


@pytest.mark.parametrize("end", ["length", "cancelled", "error"])
def test_a_state_that_the_caller_keeps_holds_no_grammar(
    pico: Model, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The limit is that of one grammar, so that a grammar still held refuses the next."""
    monkeypatch.setattr(worker, "_MAX_HELD_SECONDS_OF_TENANT", 1e-9)
    engine, kept = Engine(*pico), []
    for pattern in ("a{9}", "b{9}", "c{9}"):
        request = engine.add(Request(prompts[0], 2, grammar=Grammar.regex(pattern)))
        kept.append(request)
        engine.step()
        if end == "cancelled":
            engine.cancel(request)
        elif end == "error":
            assert request.constraint is not None
            request.constraint.error = "given up"
        while engine.has_work:
            engine.step()
        del request
    assert [each.finish_reason for each in kept] == [end] * 3


def test_a_state_that_the_caller_keeps_holds_no_penalties(
    pico: Model, prompts: list[list[int]]
) -> None:
    engine, kept = Engine(*pico), []
    penalized = Request(prompts[0], 1, SamplingParams(repetition_penalty=1.1))
    for count in range(30):
        kept.append(engine.add(penalized))
        list(engine.run(kept[-1]))
        if not count:
            before = mx.get_active_memory()
    assert mx.get_active_memory() - before < 29 * pico[0].config.vocab_size


def test_a_released_engine_ends_its_thread(pico: Model) -> None:
    before = set(threading.enumerate())
    engine = Engine(*pico)
    (thread,) = set(threading.enumerate()) - before
    engine.grammars.wait_for_vocabulary()
    del engine
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()
