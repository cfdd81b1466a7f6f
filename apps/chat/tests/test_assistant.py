"""The assistant: every option does something, and the cache changes nothing but the time."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from tinyllm_chat.assistant import Assistant
from tinyllm_chat.conversation import Conversation
from tinyllm_chat.errors import ChatError
from tinyllm_chat.prefix_cache import PrefixCache
from tinyllm_chat.settings import Settings
from tinyllm_kernels import BackendError, available
from tinyllm_layers import DenseCache, QuantizedCache
from tinyllm_ops import OpSet

Talk = Callable[..., Any]
QUESTIONS = ["What is a cache?", "And what is it for? " * 3, "Thanks"]


def test_only_new_tokens_are_computed_and_the_answers_are_those_of_a_fresh_start(
    talk: Talk, random: str
) -> None:
    session = talk(random, max_tokens=20, system="Be brief.").session
    seen = 0
    for question in QUESTIONS:
        answer = session.ask(question)
        assert answer.stats.cached_tokens == seen
        # All that was said is kept, but the answer's last token was never put in.
        seen = answer.stats.prompt_tokens + answer.stats.generated_tokens - 1
        fresh = talk(random, max_tokens=20).assistant
        replay = Conversation("Be brief.", session.conversation.turns[:-1])
        replay.ask(question)
        again = fresh.reply(replay, lambda _segment: None)
        assert again.stats.cached_tokens == 0
        assert again.text == answer.text
        assert len(again.text) == 20


def test_a_changed_beginning_is_computed_anew(talk: Talk, random: str) -> None:
    session = talk(random, max_tokens=5, system="Be brief.").session
    session.ask("one")
    session.conversation.system = "Be long."
    # 3 tokens of "<|im_start|>system\\n" and "Be " stay: 8 + 3.
    assert session.ask("two").stats.cached_tokens == len("\nsystem") + 1 + len("Be ")


def test_the_same_question_again_computes_its_last_token_alone(talk: Talk, random: str) -> None:
    session = talk(random, max_tokens=5).session
    first = session.ask("one")
    again = session.regenerate()
    assert again.stats.cached_tokens == first.stats.prompt_tokens - 1
    assert again.text == first.text
    assert len(session.conversation.turns) == 1


def test_thinking_of_earlier_turns_is_dropped_as_the_template_has_it(
    talk: Talk, scripted: str
) -> None:
    session = talk(scripted).session
    first = session.ask("one")
    assert (first.text, first.reasoning) == ("It is so.", "Hm.")
    second = session.ask("two")
    start = len("user\none\nassistant\n") + 3
    assert second.stats.cached_tokens == start  # then came "<think>", now comes the answer
    # "so." is one token of the vocabulary, and so is each of seven control tokens.
    said = len("user\none\nassistant\nIt is \nuser\ntwo\nassistant\n") + 1
    assert second.stats.prompt_tokens == said + 7


def test_prefixes_are_found_in_dense_caches() -> None:
    prefixes = PrefixCache(lambda: [DenseCache()])
    (cache,) = prefixes.reuse([1, 2, 3])
    cache.update(*[mx.zeros((1, 1, 4, 8))] * 2)
    prefixes.record([cache], [1, 2, 3, 4, 5])
    assert prefixes.tokens == (1, 2, 3, 4)
    assert prefixes.reuse([1, 2, 3, 4])[0].offset == 3
    assert prefixes.tokens == ()  # until `record` says what there is now
    prefixes.record([cache], [1, 2, 3])
    assert prefixes.reuse([9, 2, 3])[0] is not cache


def test_an_error_in_the_middle_costs_the_cache_and_no_more(talk: Talk, random: str) -> None:
    session = talk(random, max_tokens=5).session
    before = session.ask("one").text

    def fail(_done: int, _total: int) -> None:
        raise RuntimeError("out of memory")

    session.conversation.ask("two")
    with pytest.raises(RuntimeError, match="out of memory"):
        session.assistant.reply(session.conversation, lambda _: None, on_prefill=fail)
    session.conversation.retract()
    session.restart(Conversation())
    again = session.ask("one")
    assert (again.text, again.stats.cached_tokens) == (before, 0)


def test_stopping_keeps_what_was_said(talk: Talk, random: str) -> None:
    assistant = talk(random, max_tokens=50).assistant
    conversation = Conversation()
    conversation.ask("one")
    shown: list[str] = []
    answer = assistant.reply(
        conversation, lambda segment: shown.append(segment.text), stopped=lambda: len(shown) >= 3
    )
    assert answer.finish_reason == "interrupted"
    assert answer.text == "".join(shown)
    assert len(shown) == 3
    conversation.answer(answer.text)
    conversation.ask("two")
    assert assistant.reply(conversation, lambda _: None).stats.cached_tokens == (
        answer.stats.prompt_tokens + 2
    )


def test_stopping_while_the_prompt_is_read_keeps_what_was_read(talk: Talk, random: str) -> None:
    assistant = talk(random, max_tokens=5).assistant
    conversation = Conversation()
    conversation.ask("a" * 700)
    stopped = assistant.reply(conversation, lambda _: None, stopped=lambda: True)
    assert (stopped.text, stopped.finish_reason, stopped.stats) == ("", "interrupted", None)
    again = assistant.reply(conversation, lambda _: None)
    assert again.stats.cached_tokens == 512
    fresh = talk(random, max_tokens=5).assistant.reply(conversation, lambda _: None)
    assert again.text == fresh.text


def test_the_oldest_turns_make_room_with_a_notice(talk: Talk, random: str) -> None:
    made = talk(random, max_tokens=8, max_context=100, system="S")
    for question in ("a" * 20, "b" * 20, "c" * 20):
        answer = made.session.ask(question)
        assert answer.stats.prompt_tokens + answer.stats.generated_tokens <= 100
    assert made.session.conversation.forgotten == 2
    assert "context of 100 tokens was full" in made.err.getvalue()
    with pytest.raises(ChatError, match="the context takes 100"):
        made.session.ask("d" * 100)
    assert len(made.session.conversation.turns) == 3


def test_an_answer_ends_where_the_context_does(talk: Talk, random: str) -> None:
    made = talk(random, max_context=60)
    stats = made.session.ask("a" * 20).stats
    assert stats.prompt_tokens + stats.generated_tokens == 60
    assert "the context is full" in made.err.getvalue()


def on_cpu() -> bool:
    return bool(mx.default_device().type == mx.DeviceType.cpu)


def sample(talk: Talk, model: str, **options: object) -> str:
    return talk(model, **{"max_tokens": 12, **options}).session.ask("hi").text


def test_max_tokens_bounds_an_answer(talk: Talk, random: str) -> None:
    made = talk(random, max_tokens=3)
    assert made.session.ask("hi").stats.generated_tokens == 3
    assert "cut off after 3 tokens (--max-tokens 3)" in made.err.getvalue()


def test_a_seed_repeats_a_session_and_each_answer_has_its_own(talk: Talk, random: str) -> None:
    sessions = [talk(random, max_tokens=12, temperature=3.0, seed=4).session for _ in range(2)]
    first, again = ([session.ask("hi"), session.regenerate()] for session in sessions)
    assert [answer.text for answer in first] == [answer.text for answer in again]
    assert [answer.seed for answer in first] == [4, 5]
    assert first[0].text != first[1].text


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_filters_leave_the_likeliest_token_where_they_are_narrow(
    talk: Talk, random: str, narrow: dict[str, float]
) -> None:
    wild = {"temperature": 3.0, "seed": 1}
    greedy = sample(talk, random)
    assert sample(talk, random, **wild) != greedy
    assert sample(talk, random, **wild, **narrow) == greedy


def test_a_repetition_penalty_makes_a_text_repeat_less(talk: Talk, random: str) -> None:
    plain = sample(talk, random, max_tokens=40)
    assert len(set(sample(talk, random, max_tokens=40, repetition_penalty=100.0))) > len(set(plain))


def test_a_stop_string_ends_an_answer_before_it(talk: Talk, scripted: str) -> None:
    answer = talk(scripted, stop=("xyz", " so")).session.ask("hi")
    assert (answer.text, answer.finish_reason) == ("It is", "stop")


def test_without_thinking_there_is_none(talk: Talk, scripted: str) -> None:
    answer = talk(scripted, think=False).session.ask("hi")
    assert (answer.text, answer.reasoning) == (" It is so.", "")


def test_a_system_message_is_part_of_the_prompt(talk: Talk, scripted: str) -> None:
    plain = talk(scripted).session.ask("hi").stats.prompt_tokens
    told = talk(scripted, system="Be brief.").session.ask("hi").stats.prompt_tokens
    assert told == plain + len("system\nBe brief.\n") + 2


@pytest.mark.parametrize("bits", [4, 8])
def test_kv_bits_makes_the_cache_small(talk: Talk, random: str, bits: int) -> None:
    plain, packed = talk(random, max_tokens=5), talk(random, max_tokens=5, kv_bits=bits)
    for made in (plain, packed):
        made.session.ask("hi")
    assert isinstance(packed.assistant.cache.reuse([])[0], QuantizedCache)
    packed.session.ask("hi")
    ratio = plain.assistant.cache.nbytes / packed.assistant.cache.nbytes
    assert ratio == pytest.approx(32 / (bits + 2 * 32 / 32), rel=0.01)


@pytest.mark.parametrize("ops", ["reference", "mlx", "cpu", "metal"])
def test_every_op_set_gives_the_same_answer_and_says_which_it_is(
    talk: Talk, random: str, ops: str
) -> None:
    # Installs without a compiler and machines without Metal are supported; tests below say what
    # chat does there.
    backend = next(backend for backend in available() if backend.name == ops)
    if not backend.present:
        pytest.skip(backend.detail)
    made = talk(random, max_tokens=12, ops=ops, dtype="float32")
    assert made.session.ask("hi").text == sample(talk, random, dtype="float32")
    assert f"{ops} ops, float32" in made.err.getvalue()


def test_the_native_kernels_are_chosen_where_they_are(talk: Talk, random: str) -> None:
    made = talk(random, max_tokens=2)
    made.session.ask("hi")
    on_gpu = "metal" if mx.metal.is_available() else "mlx"
    fastest = ("cpu" if available()[0].present else "mlx") if on_cpu() else on_gpu
    assert f"{fastest} ops" in made.err.getvalue()


def test_an_implementation_that_is_not_here_is_named_with_its_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> OpSet:
        raise BackendError("no C++ compiler was there")

    monkeypatch.setattr("tinyllm_kernels.arithmetic.opset", absent)
    with pytest.raises(ChatError, match="--ops cpu: no C"):
        Assistant.load(Settings(ops="cpu"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_dtype_is_the_one_asked_for(talk: Talk, random: str, dtype: str) -> None:
    made = talk(random, max_tokens=2, dtype=dtype)
    made.session.ask("hi")
    assert made.assistant.model.embed_tokens.weight.dtype == getattr(mx, dtype)
    assert f"ops, {dtype}, " in made.err.getvalue()


def test_a_model_that_computes_nan_is_an_error_and_no_answer(talk: Talk, random: str) -> None:
    session = talk(random, max_tokens=5).session
    model = session.assistant.model
    model.norm = replace(model.norm, weight=model.norm.weight * float("nan"))
    with pytest.raises(ChatError, match="computes no numbers"):
        session.ask("one")
    assert session.conversation.turns == []
