"""The local assistant: the effect of every option, and exact reuse of the cache."""

import json
import shutil
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tinyllm_chat.conversation import Conversation
from tinyllm_chat.errors import ChatError
from tinyllm_chat.local.assistant import LocalAssistant
from tinyllm_chat.local.prefix_cache import PrefixCache
from tinyllm_chat.settings import Settings
from tinyllm_kernels import BackendError, available
from tinyllm_layers import DenseCache, QuantizedCache
from tinyllm_ops import OpSet
from tinyllm_qwen import CheckpointError
from tinyllm_qwen.testing import SHAPES, hybrid_checkpoint

Start = Callable[..., Any]
QUESTIONS = ["What is a cache?", "And what is it for? " * 3, "Thanks"]


def test_cached_turns_give_the_answers_of_a_fresh_start(start: Start, random: str) -> None:
    session = start(random, max_tokens=20, system="Be brief.").session
    seen = 0
    for question in QUESTIONS:
        answer = session.ask(question)
        assert answer.stats.cached_tokens == seen
        # All tokens but the last one of the answer, which the model has not processed yet.
        seen = answer.stats.prompt_tokens + answer.stats.generated_tokens - 1
        fresh = start(random, max_tokens=20).assistant
        replay = Conversation("Be brief.", session.conversation.turns[:-1])
        replay.add_question(question)
        again = fresh.reply(replay, lambda _segment: None)
        assert again.stats.cached_tokens == 0
        assert again.text == answer.text
        assert len(again.text) == 20


def test_a_changed_prefix_is_computed_again(start: Start, random: str) -> None:
    session = start(random, max_tokens=5, system="Be brief.").session
    session.ask("one")
    session.conversation.system = "Be long."
    # 3 tokens of "<|im_start|>system\\n" and "Be " stay: 8 + 3.
    assert session.ask("two").stats.cached_tokens == len("\nsystem") + 1 + len("Be ")


def test_regenerating_computes_only_the_last_prompt_token(start: Start, random: str) -> None:
    session = start(random, max_tokens=5).session
    first = session.ask("one")
    again = session.regenerate()
    assert again.stats.cached_tokens == first.stats.prompt_tokens - 1
    assert again.text == first.text
    assert len(session.conversation.turns) == 1


def test_the_context_has_the_tokens_that_memory_holds(
    start: Start, random: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assistant = start(random).assistant
    assert not assistant.notices()
    caches = assistant.model.make_caches()
    assistant.model(mx.zeros((1, 1), mx.int32), caches)
    arrays = [array for cache in caches for array in cache.arrays]
    token_bytes = sum(array.nbytes // array.shape[-2] for array in arrays)
    monkeypatch.setattr("tinyllm_chat.local.memory_limit.free_memory", lambda: 160 * token_bytes)
    limited = start(random).assistant
    assert limited.max_model_len == 120  # with capacity for 150
    (notice,) = limited.notices()
    assert notice.startswith("the context is limited to 120 tokens, whose keys and values fit")
    assert start(random, kv_bits=8).assistant.max_model_len > 120
    chosen = start(random, max_model_len=100).assistant
    assert (chosen.max_model_len, chosen.notices()) == (100, [])


def test_the_context_of_another_model_has_the_memory_of_the_previous_one(
    start: Start, random: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = start(random)
    longest = recorded.assistant.max_model_len
    previous = weakref.ref(recorded.assistant.model)
    del recorded.assistant

    def free_memory() -> int:
        return 0 if previous() else 1 << 40

    monkeypatch.setattr("tinyllm_chat.local.memory_limit.free_memory", free_memory)
    recorded.session.switch_model(random)
    assert recorded.session.assistant.max_model_len == longest
    assert not recorded.err.getvalue()


@pytest.mark.parametrize("slides", [1, 2])
def test_layers_with_a_sliding_window_need_memory_for_the_window_alone(
    start: Start, random: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slides: int
) -> None:
    folder = Path(shutil.copytree(random, tmp_path / "sliding"))
    config = json.loads((folder / "config.json").read_text())
    assert config["num_hidden_layers"] == 2
    window = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 2 - slides}
    (folder / "config.json").write_text(json.dumps(config | window))
    layer_bytes = start(random).assistant.model.page_bytes(1) // 2
    monkeypatch.setattr("tinyllm_chat.local.memory_limit.free_memory", lambda: 160 * layer_bytes)
    assistant = start(str(folder)).assistant
    # The other layer has capacity for the 130 tokens that remain, a quarter of it to grow.
    expected = 104 if slides == 1 else assistant.model.config.context_length
    assert assistant.max_model_len == expected


def test_a_model_of_recurrent_layers_alone_has_its_whole_context(
    start: Start, tmp_path: Path
) -> None:
    shape = SHAPES["tiny"] | {"num_hidden_layers": 3}
    assistant = start(str(hybrid_checkpoint(tmp_path / "recurrent", shape))).assistant
    assert assistant.model.page_bytes(1) == 0
    assert assistant.max_model_len == assistant.model.config.context_length


def test_the_template_drops_thinking_of_earlier_turns(start: Start, scripted: str) -> None:
    session = start(scripted).session
    first = session.ask("one")
    assert (first.text, first.reasoning) == ("It is so.", "Hm.")
    second = session.ask("two")
    prefix = len("user\none\nassistant\n") + 3
    assert second.stats.cached_tokens == prefix  # the first answer continued with "<think>"
    # Each character is a token, and there are seven control tokens. "so." is a token only where the
    # model generates it.
    text_tokens = len("user\none\nassistant\nIt is so.\nuser\ntwo\nassistant\n")
    assert second.stats.prompt_tokens == text_tokens + 7


def test_the_prefix_cache_finds_the_common_prefix() -> None:
    prefixes = PrefixCache(lambda: [DenseCache()])
    (cache,) = prefixes.acquire([1, 2, 3])
    assert isinstance(cache, DenseCache)
    cache.update(*[mx.zeros((1, 1, 4, 8))] * 2)
    prefixes.store([cache], [1, 2, 3, 4, 5])
    assert prefixes.tokens == (1, 2, 3, 4)
    assert prefixes.acquire([1, 2, 3, 4])[0].offset == 3
    assert list(prefixes.tokens) == []  # until `store`
    prefixes.store([cache], [1, 2, 3])
    assert prefixes.acquire([9, 2, 3])[0] is not cache


def test_an_error_during_prefill_clears_only_the_cache(start: Start, random: str) -> None:
    session = start(random, max_tokens=5).session
    before = session.ask("one").text

    def fail(_done: int, _total: int) -> None:
        raise RuntimeError("out of memory")

    session.conversation.add_question("two")
    with pytest.raises(RuntimeError, match="out of memory"):
        session.assistant.reply(session.conversation, lambda _: None, on_prefill=fail)
    session.conversation.pop_turn()
    session.start(Conversation())
    again = session.ask("one")
    assert (again.text, again.stats.cached_tokens) == (before, 0)


def test_stopping_keeps_the_partial_answer_and_its_cache(start: Start, random: str) -> None:
    assistant = start(random, max_tokens=50).assistant
    conversation = Conversation()
    conversation.add_question("one")
    shown: list[str] = []
    answer = assistant.reply(
        conversation,
        lambda segment: shown.append(segment.text),
        should_stop=lambda: len(shown) >= 3,
    )
    assert answer.finish_reason == "interrupted"
    assert answer.text == "".join(shown)
    assert len(shown) == 3
    conversation.add_answer(answer.text)
    conversation.add_question("two")
    assert assistant.reply(conversation, lambda _: None).stats.cached_tokens == (
        answer.stats.prompt_tokens + 2
    )


def test_stopping_during_prefill_keeps_complete_chunks(start: Start, random: str) -> None:
    assistant = start(random, max_tokens=5).assistant
    conversation = Conversation()
    conversation.add_question("a" * 700)
    stopped = assistant.reply(conversation, lambda _: None, should_stop=lambda: True)
    assert (stopped.text, stopped.finish_reason, stopped.stats) == ("", "interrupted", None)
    again = assistant.reply(conversation, lambda _: None)
    assert again.stats.cached_tokens == 512
    fresh = start(random, max_tokens=5).assistant.reply(conversation, lambda _: None)
    assert again.text == fresh.text


def test_a_full_context_drops_the_oldest_turns_with_a_notice(start: Start, random: str) -> None:
    recorded = start(random, max_tokens=8, max_model_len=100, system="S")
    for question in ("a" * 20, "b" * 20, "c" * 20):
        answer = recorded.session.ask(question)
        assert answer.stats.prompt_tokens + answer.stats.generated_tokens <= 100
    assert recorded.session.conversation.dropped_turns == 2
    assert "context of 100 tokens was full" in recorded.err.getvalue()
    with pytest.raises(ChatError, match="expected fewer than 100 tokens"):
        recorded.session.ask("d" * 100)
    assert len(recorded.session.conversation.turns) == 3


def test_a_question_stopped_before_its_first_token_drops_no_turns(
    start: Start, random: str
) -> None:
    recorded = start(random, max_tokens=2, max_model_len=100)
    session = recorded.session
    session.ask("a")
    session.ask("b")
    reply = session.assistant.reply
    session.assistant.reply = lambda *given, **options: reply(
        *given, **{**options, "should_stop": lambda: True}
    )
    assert session.ask("c" * 60).dropped_turns == 2  # this question fits only alone
    assert "left out" not in recorded.err.getvalue()
    session.assistant.reply = reply
    turns = 2 * len("user\na\nassistant\n..\n") + 8
    assert session.ask("d").stats.prompt_tokens == turns + len("user\nd\nassistant\n") + 3
    assert session.conversation.dropped_turns == 0


def test_an_answer_ends_at_the_end_of_the_context(start: Start, random: str) -> None:
    recorded = start(random, max_model_len=60)
    stats = recorded.session.ask("a" * 20).stats
    assert stats.prompt_tokens + stats.generated_tokens == 60
    assert "the context is full" in recorded.err.getvalue()


def on_cpu() -> bool:
    return bool(mx.default_device().type == mx.DeviceType.cpu)


def sample(start: Start, model: str, **options: object) -> str:
    return start(model, **{"max_tokens": 12, **options}).session.ask("hi").text


def test_max_tokens_limits_an_answer(start: Start, random: str) -> None:
    recorded = start(random, max_tokens=3)
    assert recorded.session.ask("hi").stats.generated_tokens == 3
    assert "cut off after 3 tokens (--max-tokens 3)" in recorded.err.getvalue()


def test_a_seed_repeats_a_session_and_each_answer_has_its_own_seed(
    start: Start, random: str
) -> None:
    sessions = [start(random, max_tokens=12, temperature=3.0, seed=4).session for _ in range(2)]
    first, again = ([session.ask("hi"), session.regenerate()] for session in sessions)
    assert [answer.text for answer in first] == [answer.text for answer in again]
    assert [answer.seed for answer in first] == [4, 5]
    assert first[0].text != first[1].text


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_narrow_filters_leave_only_the_likeliest_token(
    start: Start, random: str, narrow: dict[str, float]
) -> None:
    wild = {"temperature": 3.0, "seed": 1}
    greedy = sample(start, random)
    assert sample(start, random, **wild) != greedy
    assert sample(start, random, **wild, **narrow) == greedy


def test_a_repetition_penalty_reduces_repetition(start: Start, random: str) -> None:
    plain = sample(start, random, max_tokens=40)
    assert len(set(sample(start, random, max_tokens=40, repetition_penalty=100.0))) > len(
        set(plain)
    )


def test_an_answer_ends_before_a_stop_string(start: Start, scripted: str) -> None:
    answer = start(scripted, stop=["xyz", " so"]).session.ask("hi")
    assert (answer.text, answer.finish_reason) == ("It is", "stop")


def test_thinking_can_be_turned_off(start: Start, scripted: str) -> None:
    answer = start(scripted, no_think=True).session.ask("hi")
    assert (answer.text, answer.reasoning) == (" It is so.", "")


def test_an_effort_reaches_the_chat_template(start: Start, efforts: str) -> None:
    """Each character is a token of this model."""
    plain, low, xhigh = (
        start(efforts, reasoning_effort=effort).session.ask("hi").stats.prompt_tokens
        for effort in (None, "low", "xhigh")
    )
    assert (low - plain, xhigh - plain) == (3, 5)


def test_a_system_message_is_part_of_the_prompt(start: Start, scripted: str) -> None:
    plain = start(scripted).session.ask("hi").stats.prompt_tokens
    with_system = start(scripted, system="Be brief.").session.ask("hi").stats.prompt_tokens
    assert with_system == plain + len("system\nBe brief.\n") + 2


def test_a_draft_head_changes_no_answer(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = str(hybrid_checkpoint(tmp_path / "qwen35"))
    options = {"max_tokens": 12, "no_think": True, "seed": 1}
    plain = start(model, **options).session
    drafted = start(model, draft_model="mtp", num_speculative_tokens=3, **options)
    for question in QUESTIONS:
        expected, answer = plain.ask(question), drafted.session.ask(question)
        assert answer.text == expected.text
        assert answer.stats.cached_tokens == expected.stats.cached_tokens
        assert answer.stats.draft_tokens > 8
    assert "draft tokens accepted" in drafted.err.getvalue()
    assert caplog.text == ""  # kernels would log a copy of the cache


def test_another_model_is_loaded_without_the_draft_head_that_it_lacks(
    start: Start, tmp_path: Path, random: str
) -> None:
    model = str(hybrid_checkpoint(tmp_path / "qwen35"))
    recorded = start(model, draft_model="mtp", max_tokens=12, no_think=True)
    recorded.session.switch_model(model)
    assert recorded.session.ask("hi").stats.draft_tokens
    assert not recorded.err.getvalue().count("--draft-model is left out")
    recorded.session.switch_model(random)
    assert not recorded.session.ask("hi").stats.draft_tokens
    assert "--draft-model is left out: " in recorded.err.getvalue()


def test_a_model_without_a_draft_head_is_refused(start: Start, random: str) -> None:
    with pytest.raises(CheckpointError, match=r"expected a draft head \(mtp"):
        start(random, draft_model="mtp")


@pytest.mark.parametrize("bits", [4, 8])
def test_kv_bits_shrinks_the_cache(start: Start, random: str, bits: int) -> None:
    plain, packed = start(random, max_tokens=5), start(random, max_tokens=5, kv_bits=bits)
    for recorded in (plain, packed):
        recorded.session.ask("hi")
    assert isinstance(packed.assistant.cache.acquire([])[0], QuantizedCache)
    packed.session.ask("hi")
    ratio = plain.assistant.cache.nbytes / packed.assistant.cache.nbytes
    assert ratio == pytest.approx(32 / (bits + 2 * 32 / 32), rel=0.01)


@pytest.mark.parametrize("ops", ["reference", "mlx", "cpu", "metal"])
def test_every_op_set_gives_the_same_answer_and_is_named(
    start: Start, random: str, ops: str
) -> None:
    # Installs without a compiler and machines without Metal are supported; tests below cover them.
    backend = next(backend for backend in available() if backend.name == ops)
    if not backend.present:
        pytest.skip(backend.detail)
    recorded = start(random, max_tokens=12, ops=ops, dtype="float32")
    assert recorded.session.ask("hi").text == sample(start, random, dtype="float32")
    assert f"{ops} ops, float32" in recorded.err.getvalue()


def test_the_fastest_available_kernels_are_chosen(start: Start, random: str) -> None:
    recorded = start(random, max_tokens=2)
    recorded.session.ask("hi")
    on_gpu = "metal" if mx.metal.is_available() else "mlx"
    fastest = ("cpu" if available()[0].present else "mlx") if on_cpu() else on_gpu
    assert f"{fastest} ops" in recorded.err.getvalue()


def test_a_missing_implementation_is_an_error_of_its_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> OpSet:
        raise BackendError("no C++ compiler was there")

    monkeypatch.setattr("tinyllm_kernels.backend_choice.opset", absent)
    with pytest.raises(ChatError, match="--ops cpu: no C"):
        LocalAssistant(Settings(ops="cpu"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_dtype_of_the_weights_is_the_requested_one(
    start: Start, random: str, dtype: str
) -> None:
    recorded = start(random, max_tokens=2, dtype=dtype)
    recorded.session.ask("hi")
    assert recorded.assistant.model.embed_tokens.weight.dtype == getattr(mx, dtype)
    assert f"ops, {dtype}, " in recorded.err.getvalue()


def test_nan_logits_are_an_error(start: Start, random: str) -> None:
    session = start(random, max_tokens=5).session
    model = session.assistant.model
    model.norm = replace(model.norm, weight=model.norm.weight * float("nan"))
    with pytest.raises(ChatError, match="computes NaN"):
        session.ask("one")
    assert session.conversation.turns == []
