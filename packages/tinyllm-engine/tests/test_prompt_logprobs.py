"""The log-probabilities of prompts are those of one pass over the whole prompt, in float64."""

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_engine import Engine, EngineSettings, Output, Request, RequestError
from tinyllm_engine.testing import pages_of
from tinyllm_layers import Batch
from tinyllm_qwen import Qwen, SamplingParams, Tokenizer

Model = tuple[Qwen, Tokenizer]


def expected(model: Qwen, prompt: list[int]) -> np.ndarray:
    """Return the log-probabilities of all tokens after each token of a prompt."""
    logits = model(mx.array([prompt]), batch=Batch.at(0, 1, len(prompt), "prefill"))
    rows = np.array(logits[0].astype(mx.float32)).astype(np.float64)
    largest = rows.max(-1, keepdims=True)
    return rows - largest - np.log(np.exp(rows - largest).sum(-1, keepdims=True))


def scored(prompt: list[int], top: int = 0) -> Request:
    sampling = SamplingParams(top_logprobs=top)
    return Request(prompt, 3, sampling, prompt_logprobs=True, ignore_end=True)


def first_output(engine: Engine, request: Request) -> Output:
    first, *others = engine.run(engine.add(request))
    assert all(not output.prompt_logprobs for output in others)
    return first


def check(output: Output, model: Qwen, prompt: list[int], top: int = 0) -> None:
    rows = expected(model, prompt)
    assert [each.token for each in output.prompt_logprobs] == prompt
    assert output.prompt_logprobs[0].logprob is None
    if output.logprob is not None:
        assert output.logprob == pytest.approx(rows[-1, output.token], abs=1e-4)
    for each, row in zip(output.prompt_logprobs[1:], rows, strict=False):
        assert each.logprob == pytest.approx(row[each.token], abs=1e-4)
        assert [best.logprob for best in each.top] == pytest.approx(
            sorted(row, reverse=True)[:top], abs=1e-4
        )
        assert [row[best.token] for best in each.top] == pytest.approx(
            [best.logprob for best in each.top], abs=1e-4
        )


@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_prompts_have_the_log_probabilities_of_one_pass(
    pico: Model, prompts: list[list[int]], chunk: int
) -> None:
    engine = Engine(*pico, EngineSettings(page_size=8, max_num_batched_tokens=chunk))
    for prompt in (prompts[6], prompts[0], prompts[0][:1]):
        check(first_output(engine, scored(prompt, top=2)), pico[0], prompt, top=2)


def test_a_long_prompt_is_scored_in_several_steps(pico: Model, prompts: list[list[int]]) -> None:
    prompt = (prompts[6] * 300)[:300]
    engine = Engine(*pico)
    engine._budget.tokens_alone = 300
    check(first_output(engine, scored(prompt)), pico[0], prompt)


def test_a_prompt_in_the_prefix_cache_is_scored_as_a_whole(
    pico: Model, prompts: list[list[int]]
) -> None:
    prompt = prompts[6]
    engine = Engine(*pico, EngineSettings(page_size=4))
    list(engine.run(engine.add(Request(prompt, 3))))
    first = first_output(engine, scored(prompt))
    check(first, pico[0], prompt)
    assert first.usage.cached_tokens == 0
    assert first_output(engine, scored(prompt)).prompt_logprobs == first.prompt_logprobs
    (*_, last) = engine.run(engine.add(Request(prompt, 3)))
    assert last.usage.cached_tokens  # other requests share the pages of a scored prompt


def test_other_requests_do_not_change_the_log_probabilities(
    pico: Model, prompts: list[list[int]]
) -> None:
    alone = [first_output(Engine(*pico), scored(prompt)) for prompt in prompts]
    engine = Engine(
        *pico, EngineSettings(page_size=4, kv_cache_memory_bytes=pages_of(pico[0], 60, 4))
    )
    handles = [engine.add(scored(prompt)) for prompt in prompts]
    plain = [engine.add(Request(prompt, 20, ignore_end=True)) for prompt in prompts]
    for handle, wanted in zip(handles, alone, strict=True):
        assert next(engine.run(handle)).prompt_logprobs == wanted.prompt_logprobs
    for handle, prompt in zip(plain, prompts, strict=True):
        outputs = list(engine.run(handle))
        assert not any(output.prompt_logprobs for output in outputs)
        lone = Engine(*pico)
        wanted_tokens = lone.run(lone.add(Request(prompt, 20, ignore_end=True)))
        assert [output.token for output in outputs] == [output.token for output in wanted_tokens]
    assert engine.stats.preemptions > 0


@pytest.mark.parametrize("length", [1, 2, 300])
def test_a_prompt_is_scored_without_new_tokens(
    pico: Model, prompts: list[list[int]], length: int
) -> None:
    prompt = (prompts[6] * 300)[:length]
    engine = Engine(*pico)
    (output,) = engine.run(engine.add(Request(prompt, 0, prompt_logprobs=True)))
    assert output.finish_reason == "length"
    assert output.logprob is None
    assert output.usage.completion_tokens == 0
    check(output, pico[0], prompt)
    assert engine.stats.pages_used == 0
    with pytest.raises(RequestError, match=r"^max_tokens: expected at least 1, got 0"):
        Request(prompt, 0)


def test_an_embedding_has_no_log_probabilities() -> None:
    with pytest.raises(RequestError, match=r"^embedding: expected no grammar, stop or logprobs"):
        Request([1], embedding=True, prompt_logprobs=True)
