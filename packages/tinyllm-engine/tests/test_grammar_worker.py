"""The queue of grammars, and its callers that give up."""

import asyncio
import json
import random
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from tinyllm_engine import (
    AsyncEngine,
    Engine,
    EngineClosedError,
    EngineFullError,
    Grammar,
    Request,
    RequestError,
)
from tinyllm_engine.grammar import compiler as compiler_module
from tinyllm_engine.grammar import worker as worker_module
from tinyllm_engine.grammar.compiler import CompiledGrammar, GrammarCompiler
from tinyllm_engine.grammar.constraint import Constraint
from tinyllm_engine.grammar.worker import MAX_QUEUED, MAX_REQUESTS, GrammarWorker
from tinyllm_qwen import Qwen, Tokenizer, load
from tinyllm_qwen.testing import random_checkpoint

Model = tuple[Qwen, Tokenizer]


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A compiler that waits until this event is set."""
    event, compile_now = threading.Event(), GrammarCompiler.compile

    def wait(compiler: GrammarCompiler, grammar: Grammar) -> CompiledGrammar:
        assert event.wait(30)
        return compile_now(compiler, grammar)

    monkeypatch.setattr(GrammarCompiler, "compile", wait)
    yield event
    event.set()


def test_cancelled_grammars_take_no_place_in_the_queue(
    pico: Model, release: threading.Event
) -> None:
    worker = GrammarWorker(GrammarCompiler(pico[1], 2048))
    running = worker.submit(Grammar.regex("x"))
    while worker._queues:
        pass  # until the compiler has the first grammar
    for index in range(10 * MAX_QUEUED):
        worker.submit(Grammar.regex(f"a{index}")).cancel()
    assert len(worker._jobs) <= MAX_QUEUED + 1
    wanted = [worker.submit(Grammar.regex(f"b{index}")) for index in range(MAX_QUEUED)]
    with pytest.raises(EngineFullError):
        worker.submit(Grammar.regex("c"))
    release.set()
    for future in [running, *wanted]:
        assert isinstance(future.result(30), CompiledGrammar)
    worker.close()


def test_a_grammar_too_slow_for_the_cache_evicts_no_other(
    pico: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = GrammarWorker(GrammarCompiler(pico[1], 2048))
    worker.compile(Grammar.regex("a"))
    monkeypatch.setattr(worker_module, "_MAX_CACHED_SECONDS", 0.0)
    worker.compile(Grammar.regex("b"))
    monkeypatch.undo()
    assert [grammar.text for _, grammar in worker._cache] == ["a"]
    worker.close()


def test_cached_grammars_took_a_limited_time_together(
    pico: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each grammar takes one second of a fake clock, and the limit is two."""
    worker = GrammarWorker(GrammarCompiler(pico[1], 2048))
    monkeypatch.setattr(worker_module, "time", SimpleNamespace(thread_time=count(0.0).__next__))
    monkeypatch.setattr(worker_module, "_SECONDS_FOR_STATES", 0.0)
    for pattern in "abc":
        worker.compile(Grammar.regex(pattern))
    assert [grammar.text for _, grammar in worker._cache] == ["b", "c"]
    worker.close()


def test_the_states_of_a_cached_grammar_count_as_time(pico: Model) -> None:
    """The compiler takes about 1 ms, so the fixed seconds alone bound the cache."""
    worker = GrammarWorker(GrammarCompiler(pico[1], 2048))
    for index in range(40):
        worker.compile(Grammar.regex(f"a{index}"))
    assert 10 < len(worker._cache) < 20
    worker.close()


def test_a_grammar_of_many_requests_does_not_wear_out(pico: Model) -> None:
    """All labels together have 30,000 states of the lexer, more than the limit."""
    tokenizer, rng = pico[1], random.Random(0)
    worker = GrammarWorker(GrammarCompiler(tokenizer, 2048))
    labels = ["".join(rng.choices("abcdefghij klmnop", k=60)) for _ in range(500)]
    grammar = Grammar.choice(labels)
    for label in labels:
        constraint = worker.compile(grammar).constraint()
        for token in tokenizer.encode(label):
            constraint.consume([token])
        assert constraint.error is None
    worker.close()


def test_a_grammar_is_compiled_anew_after_many_requests(pico: Model) -> None:
    worker = GrammarWorker(GrammarCompiler(pico[1], 2048))
    compiled = [worker.compile(Grammar.regex("a*")) for _ in range(2 * MAX_REQUESTS)]
    assert len(set(compiled[:MAX_REQUESTS])) == 1
    assert len(set(compiled)) == 2
    worker.close()


def test_a_grammar_that_reached_a_limit_is_compiled_anew(pico: Model) -> None:
    tokenizer = pico[1]
    worker = GrammarWorker(GrammarCompiler(tokenizer, 2048))
    grammar = Grammar.regex("(ab|cd)?" * 2000)
    constraint = worker.compile(grammar).constraint()
    for token in tokenizer.encode("abcdab"):
        constraint.masks([])
        if constraint.error is None:
            constraint.consume([token])
    assert constraint.error is not None
    later = worker.compile(grammar).constraint()
    later.masks([])
    assert later.error is None
    worker.close()


def test_the_grammars_of_requests_took_a_limited_time_together(
    pico: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each grammar takes one second of a fake clock. A tenant may hold two, all tenants four."""
    worker = GrammarWorker(GrammarCompiler(pico[1], 2048))
    ticks = count()
    clock = SimpleNamespace(thread_time=lambda: float(next(ticks)))
    monkeypatch.setattr(worker_module, "time", clock)

    def hold(tenant: str, pattern: str) -> Constraint:
        return worker.compile(Grammar.regex(pattern), tenant).constraint()

    held = [hold("one", "a"), hold("one", "b")]
    with pytest.raises(EngineFullError, match=r"^2 grammars are in use: try again"):
        hold("one", "c")
    held += [hold("two", "a"), hold("two", "b")]
    with pytest.raises(EngineFullError, match="4 grammars are in use"):
        hold("three", "a")
    held.clear()
    hold("three", "a")
    for pattern in "abcdef":  # the cache makes space
        hold("one", pattern)
    worker.close()


def test_a_cancelled_grammar_is_not_compiled(pico: Model, release: threading.Event) -> None:
    worker = GrammarWorker(GrammarCompiler(pico[1], 2048))
    futures = [worker.submit(Grammar.regex(pattern)) for pattern in "abc"]
    futures[1].cancel()
    release.set()
    futures[2].result(30)
    assert [grammar.text for _, grammar in worker._cache] == ["a", "c"]
    worker.close()


def test_a_caller_waits_a_limited_time_for_a_grammar(
    pico: Model, release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = GrammarWorker(GrammarCompiler(pico[1], 2048))
    monkeypatch.setattr(worker_module, "MAX_SECONDS", 0.0)
    with pytest.raises(RequestError, match=r"^grammar: expected one that compiles within 0 s"):
        worker.compile(Grammar.regex("a"))
    assert not any(job.is_wanted for job in worker._jobs.values())
    worker.close()


def test_a_vocabulary_that_cannot_be_read_is_an_error_at_the_start(
    pico: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("tokenizer: a long token")

    monkeypatch.setattr(compiler_module, "token_tree", fail)
    worker = GrammarWorker(GrammarCompiler(pico[1], 2048))
    with pytest.raises(ValueError, match="a long token"):
        worker.wait_for_vocabulary()
    worker.close()


def test_an_end_token_outside_the_vocabulary_is_left_out(tmp_path: Path) -> None:
    folder = random_checkpoint(tmp_path / "model", "{{ messages[0]['content'] }}")
    config = json.loads((folder / "config.json").read_text())
    config["eos_token_id"] = [config["eos_token_id"], config["vocab_size"]]
    (folder / "config.json").write_text(json.dumps(config))
    engine = Engine(*load(folder))
    engine.grammars.wait_for_vocabulary()
    handle = engine.add(Request([5, 6], 9, grammar=Grammar.regex("[a-c]{3}")))
    assert len("".join(output.text for output in engine.run(handle))) == 3


def test_an_engine_that_fails_while_a_grammar_is_compiled_logs_no_error(
    pico: Model, release: threading.Event
) -> None:
    errors: list[dict[str, object]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, error: errors.append(error))
        engine = AsyncEngine(lambda: Engine(*pico))
        await engine.start()

        async def ask() -> None:
            async for _ in engine.stream(Request([5, 6], 3, grammar=Grammar.regex("a"))):
                pass

        asked = asyncio.create_task(ask())
        await asyncio.sleep(0.1)
        engine.fail("gone")
        with pytest.raises(EngineClosedError, match="gone"):
            await asked
        release.set()
        await asyncio.sleep(0.2)
        await engine.close()

    asyncio.run(main())
    assert errors == []


def test_a_choice_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^texts: expected at least one, got none"):
        Grammar.choice([])
    with pytest.raises(ValueError, match=r"^texts: expected no empty text, got one"):
        Grammar.choice(["a", ""])


def test_a_closed_worker_refuses_grammars_at_once(pico: Model) -> None:
    worker = GrammarWorker(GrammarCompiler(pico[1], 2048))
    worker.close()
    with pytest.raises(EngineClosedError, match="compiles no grammars"):
        worker.compile(Grammar.regex("a"))
