"""Requests that are refused, and requests that must not change others."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tinyllm_engine import (
    Engine,
    EngineSettings,
    Grammar,
    Output,
    Request,
    RequestError,
    RequestState,
)
from tinyllm_qwen import Qwen, SamplingParams, Tokenizer


def test_a_request_does_not_change_when_the_callers_prompt_does(
    pico: tuple[Qwen, Tokenizer], prompts: list[list[int]]
) -> None:
    tokens = list(prompts[0])
    engine = Engine(*pico, EngineSettings(page_size=8))
    handle = engine.add(Request(tokens, 5, ignore_end=True))
    for output in engine.run(handle):
        tokens.append(output.token)
    assert handle.usage.completion_tokens == 5


@pytest.mark.usefixtures("unchecked")
def test_a_checked_prompt_is_not_copied_and_a_tuple_is_checked() -> None:
    prompt = Request([1, 2]).prompt
    assert Request(prompt).prompt is prompt
    with pytest.raises(RequestError, match=r"^prompt: expected integers"):
        Request((1, 2.5))  # type: ignore[arg-type]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("prompt", "settings", "named"),
    [
        ([1, 2.0], {}, "prompt: expected integers, got [1, 2.0]"),
        ([1], {"max_tokens": 2.5}, "max_tokens: expected an integer, got 2.5"),
        ([1], {"priority": "low"}, "priority: expected an integer, got 'low'"),
        ([1], {"stop": "end"}, "stop: expected a list of strings, got 'end'"),
        ([1], {"stop": None}, "stop: expected a list of strings, got None"),
        ([1], {"stop": [5]}, "stop: expected a list of strings, got [5]"),
        ([1], {"grammar": {"a": 1}}, "grammar: expected a Grammar or None, got {'a': 1}"),
        ([1], {"sampling": {"a": 1}}, "sampling: expected SamplingParams, got {'a': 1}"),
        ([1], {"weight": "1"}, "weight: expected a finite number above 0, got '1'"),
        ([1], {"cache_salt": b"x"}, "cache_salt: expected a string, got b'x'"),
        ([1], {"cache_salt": None}, "cache_salt: expected a string, got None"),
        ([1], {"tenant": ["a"]}, "tenant: expected a string, got ['a']"),
        (None, {}, "prompt: expected integers, got None"),
        ("hi", {}, "prompt: expected integers, got 'hi': use `tokenizer.encode`"),
        (np.array([1.0, 2.0]), {}, "prompt: expected integers, got array([1., 2.])"),
        (np.array([], int), {}, "prompt: expected at least one token, got none"),
    ],
)
def test_a_field_of_another_type_is_refused(
    prompt: Any, settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(RequestError) as refused:
        Request(prompt, **settings)
    assert str(refused.value) == named


@pytest.mark.usefixtures("unchecked")
def test_numbers_may_be_those_of_numpy(
    pico: tuple[Qwen, Tokenizer], prompts: list[list[int]]
) -> None:
    expected = Request(prompts[0], 3)
    request = Request(np.array(prompts[0]), np.int64(3), priority=np.int8(0), weight=np.float32(1))  # type: ignore[arg-type]
    assert request == expected
    settings = EngineSettings(max_num_seqs=np.int64(3))  # type: ignore[arg-type]
    assert type(settings.max_num_seqs) is int


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_batched_tokens", 20.5),
        ("page_size", 16.0),
        ("page_size", None),
        ("kv_cache_memory_bytes", 1e7),
        ("max_num_seqs", 2.5),
        ("num_speculative_tokens", "2"),
        ("kv_bits", 4.0),
        ("step_seconds", "1"),
    ],
)
def test_a_setting_of_another_type_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: expected .*, got {value!r}$"):
        EngineSettings(**{name: value})  # type: ignore[arg-type]


@pytest.mark.usefixtures("unchecked")
def test_the_path_of_prefixes_may_be_a_string(
    pico: tuple[Qwen, Tokenizer], prompts: list[list[int]], tmp_path: Path
) -> None:
    path = str(tmp_path / "prefixes")
    engine = Engine(*pico, EngineSettings(page_size=8, prefix_cache_path=path))  # type: ignore[arg-type]
    list(engine.run(engine.add(Request(prompts[6], 2))))
    saved = engine.save_prefixes()
    assert saved == engine.save_prefixes(path) == engine.stats.pages_cached


@pytest.mark.parametrize(
    "answer",
    [
        {"grammar": Grammar.regex("a")},
        {"stop": ["."]},
        {"sampling": SamplingParams(top_logprobs=3)},
    ],
)
def test_an_embedding_has_no_answer(answer: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"^embedding: expected no grammar, stop or logprobs"):
        Request([1], embedding=True, **answer)


def test_a_request_of_another_engine_is_refused(
    pico: tuple[Qwen, Tokenizer], prompts: list[list[int]]
) -> None:
    engine, other = Engine(*pico), Engine(*pico)
    request = other.add(Request(prompts[0], 2))
    step, steps = engine.step, iter(range(9))  # the ninth step ends a test that would not end

    def counted() -> list[tuple[RequestState, Output]]:
        next(steps)
        return step()

    engine.step = counted  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"^request: expected one of this engine"):
        list(engine.run(request))
    assert len(list(other.run(request))) == 2
    assert list(engine.run(request)) == []  # it has ended, and its outputs are returned


def test_requests_stay_in_their_thread(
    pico: tuple[Qwen, Tokenizer], prompts: list[list[int]]
) -> None:
    engine = Engine(*pico)
    sampled = Request(prompts[0], 6, SamplingParams(temperature=1.0, seed=1))
    expected = [output.token for output in engine.run(engine.add(sampled))]
    state = engine.add(sampled)
    with ThreadPoolExecutor(1) as other:
        for call in (lambda: engine.add(sampled), engine.step, lambda: engine.cancel(state)):
            with pytest.raises(RuntimeError, match=r"^expected the thread that added the requests"):
                other.submit(call).result()
        assert [output.token for output in engine.run(state)] == expected
        whole = other.submit(lambda: [each.token for each in engine.run(engine.add(sampled))])
        assert whole.result() == expected
    assert engine.stats.failed_steps == 0


def test_a_weight_of_any_size_leaves_other_tenants_alone(
    pico: tuple[Qwen, Tokenizer], prompts: list[list[int]]
) -> None:
    engine = Engine(*pico, EngineSettings(page_size=8, max_num_seqs=4))
    handles = [
        engine.add(Request(prompts[0], 4, tenant=tenant, weight=weight))
        for tenant, weight in 4 * [("a", 1.0), ("b", 1e308)]
    ]
    while engine.has_work:
        engine.step()
    assert {handle.finish_reason for handle in handles} <= {"stop", "length"}


def test_settings_are_finite() -> None:
    with pytest.raises(ValueError, match=r"^step_seconds: expected a finite number above 0"):
        EngineSettings(step_seconds=float("inf"))


def test_prompt_tokens_and_hits_are_counted_when_a_request_is_admitted(
    pico: tuple[Qwen, Tokenizer], prompts: list[list[int]]
) -> None:
    engine = Engine(*pico, EngineSettings(page_size=8, max_num_seqs=1))
    list(engine.run(engine.add(Request(prompts[6], 3))))
    running, _ = [engine.add(Request(prompts[6], 9, ignore_end=True)) for _ in range(2)]
    engine.step()
    assert engine.stats.waiting == 1
    assert engine.stats.prompt_tokens == 2 * len(prompts[6])
    assert engine.stats.cached_tokens == running.usage.cached_tokens > 0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda engine: engine.add([1, 2]), "request: expected a Request of token ids, got list"),
        (lambda engine: engine.add("hello"), "request: expected a Request of token ids, got str"),
        (
            lambda engine: list(engine.run(Request([1]))),
            "request: expected the RequestState that `add` returned, got Request",
        ),
        (
            lambda engine: engine.cancel(Request([1])),
            "request: expected the RequestState that `add` returned, got Request",
        ),
        (
            lambda engine: Engine(engine.model, engine.tokenizer, cast("Any", {"page_size": 8})),
            "settings: expected EngineSettings, got dict",
        ),
        (
            lambda engine: Engine(engine.tokenizer, engine.model),
            "tokenizer: expected the Tokenizer that `load` returned, got Qwen",
        ),
        (
            lambda engine: engine.add(Request([1]), Grammar.regex("a")),
            "grammar: expected the result of `grammars.compile`, or None with Request.grammar, got "
            "Grammar",
        ),
    ],
)
def test_an_argument_of_another_type_is_refused(
    pico: tuple[Qwen, Tokenizer], call: Callable[[Any], object], named: str
) -> None:
    engine = Engine(*pico)
    with pytest.raises(ValueError, match=f"^{re.escape(named)}$"):
        call(engine)
    assert not engine.has_work
