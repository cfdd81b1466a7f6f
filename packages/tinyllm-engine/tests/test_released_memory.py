"""Finished requests and closed engines are released."""

import gc
import threading
import weakref

import pytest
from tinyllm_engine import Engine, EngineSettings, Request
from tinyllm_qwen import Qwen, Tokenizer

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


def test_a_released_engine_ends_its_thread(pico: Model) -> None:
    before = set(threading.enumerate())
    engine = Engine(*pico)
    (thread,) = set(threading.enumerate()) - before
    engine.grammars.wait_for_vocabulary()
    del engine
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()
