"""Answers conform to the grammar of their request, for any weights and seed."""

import json
import re
from ast import literal_eval
from dataclasses import replace
from threading import Event

import mlx.core as mx
import pytest
from jsonschema import validate
from tinyllm_engine import (
    Engine,
    EngineFullError,
    EngineSettings,
    Grammar,
    Request,
    RequestError,
    RequestState,
)
from tinyllm_engine.grammar.compiler import GrammarCompiler
from tinyllm_engine.grammar.reasoning_prefix import ReasoningPrefix
from tinyllm_engine.grammar.vocabulary import token_tree
from tinyllm_engine.grammar.worker import MAX_QUEUED, GrammarWorker
from tinyllm_engine.kv.page_pool import PagePool
from tinyllm_qwen import Qwen, SamplingParams, Tokenizer
from tinyllm_qwen.checkpoint.schema import expected_shapes

Model = tuple[Qwen, Tokenizer]

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["norm", "rope"]},
        "sizes": {"type": "array", "items": {"type": "integer", "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},  # or random weights give endless blanks
}
SCHEMA["properties"]["sizes"]["items"]["minimum"] = 0
DATE = "(19|20)[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]( é+x{1,3})?"
SUMS = """start: term ("," term){0,3}
term: NUMBER | "[" NUMBER ("," NUMBER)? "]"
NUMBER: /[1-9][0-9]{0,2}/"""
WORDS = ['a "b"', "\\", "é\n", "<|im_end|>"]
GRAMMARS = [Grammar.json_schema(SCHEMA), Grammar.regex(DATE), Grammar.lark(SUMS)]


@pytest.fixture(scope="module")
def noise(pico: Model) -> Model:
    """A model of one layer with random weights: all tokens are about equally likely."""
    config = replace(pico[0].config, num_hidden_layers=1)
    mx.random.seed(1)
    shapes = expected_shapes(config).items()
    weights = {name: 0.1 * mx.random.normal(shape) for name, shape in shapes}
    return Qwen(config, weights, ops=pico[0].ops), pico[1]


def answer(handle: RequestState) -> list[int]:
    return handle.tokens[len(handle.prompt) :]


def finish(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def check(grammar: Grammar, said: str) -> None:
    """Check a text with parsers other than llguidance."""
    if grammar.kind == "json_schema":
        validate(json.loads(said), SCHEMA)
    elif grammar.kind == "regex":
        assert re.fullmatch(DATE, said), said
    else:
        assert re.fullmatch(r"[\d,\[\]]+", said), said
        assert literal_eval(f"({said},)")


@pytest.mark.parametrize("seed", range(3))
def test_constrained_requests_conform_and_leave_other_requests_alone(
    noise: Model, prompts: list[list[int]], seed: int
) -> None:
    drawn = SamplingParams(temperature=1.0, seed=seed)
    free = [Request(prompt, 12, drawn, ignore_end=True) for prompt in prompts[:3]]
    alone = Engine(*noise)
    wanted = [alone.add(request) for request in free]
    finish(alone)
    engine = Engine(*noise, EngineSettings(page_size=8, num_speculative_tokens=3))
    others = []
    constrained = []
    for request, grammar in zip(free, GRAMMARS, strict=True):
        others.append(engine.add(request))
        for sampling in (SamplingParams(), drawn):
            constrained.append(engine.add(Request(request.prompt, 200, sampling, grammar=grammar)))
            engine.step()
    finish(engine)
    assert [answer(handle) for handle in others] == [answer(handle) for handle in wanted]
    for handle in constrained:
        if handle.finish_reason == "length":  # greedy decoding of noise repeats itself
            assert handle.request.sampling.is_greedy
            continue
        assert handle.finish_reason == "stop"
        check(handle.request.grammar, engine.tokenizer.decode(answer(handle)))  # type: ignore[arg-type]
    assert engine.stats.pages_used == 0


def test_drafts_and_preemptions_change_nothing(noise: Model, prompts: list[list[int]]) -> None:
    """Prompts contain texts of the grammar, so that drafts are right, wrong and forbidden."""
    model, tokenizer = noise
    prompt = (
        tokenizer.encode('{"name":"é","kind":"norm","sizes":[55,5]} 2047-01-04 940+72,[1,2]') * 2
    )
    sampling = SamplingParams(temperature=0.7, seed=5)
    requests = [Request(prompt, 120, sampling, grammar=grammar) for grammar in GRAMMARS * 2]
    plenty = Engine(model, tokenizer)
    wanted = [plenty.add(request) for request in requests]
    finish(plenty)
    page = PagePool(model, EngineSettings(page_size=8, kv_cache_memory_bytes=1 << 24)).page_bytes
    pages = -(-(len(prompt) + 120) // 8) + 4
    settings = EngineSettings(
        page_size=8,
        kv_cache_memory_bytes=pages * page,
        num_speculative_tokens=4,
        enable_prefix_caching=False,
    )
    engine = Engine(model, tokenizer, settings)
    handles = [engine.add(request) for request in requests]
    finish(engine)
    assert engine.stats.preemptions > 0
    assert engine.stats.draft_tokens > 0
    assert [answer(handle) for handle in handles] == [answer(handle) for handle in wanted]


@pytest.mark.parametrize(("mark", "seed"), [("e", 1), ("e", 2), ("er", 3)])
def test_a_grammar_after_a_mark_leaves_the_text_before_it_alone(
    noise: Model, prompts: list[list[int]], mark: str, seed: int
) -> None:
    engine = Engine(*noise, EngineSettings(num_speculative_tokens=3))
    # End tokens are banned, because the text may otherwise end before the mark.
    bans = dict.fromkeys(engine.tokenizer.eos_token_ids, -100.0)
    sampling = SamplingParams(temperature=1.0, seed=seed, logit_bias=bans)
    requests = [
        Request(prompts[0], 800, sampling, grammar=Grammar(g.kind, g.text, after=mark))
        for g in GRAMMARS
    ]
    handles = [engine.add(request) for request in requests]
    finish(engine)
    for handle in handles:
        said = engine.tokenizer.decode(answer(handle))
        _before, found, after = said.partition(mark)
        assert handle.finish_reason == "stop"
        assert found
        check(handle.request.grammar, after)  # type: ignore[arg-type]


def test_masks_of_a_draft_across_the_mark_leave_the_state_alone(pico: Model) -> None:
    tokenizer = pico[1]
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    constraint = compiler.compile(Grammar.regex("7x", after="e")).constraint()
    draft = [token for text in ("e", "7") for token in tokenizer.encode(text)]
    first, second = constraint.masks(draft), constraint.masks(draft)
    assert constraint.num_allowed(draft) == len(draft)
    assert [mask.tolist() for mask in first] == [mask.tolist() for mask in second]


def test_a_ban_does_not_lead_out_of_the_grammar(pico: Model, prompts: list[list[int]]) -> None:
    engine = Engine(*pico)
    (token,) = engine.tokenizer.encode("7")
    sampling = SamplingParams(logit_bias={token: -float("inf")}, top_logprobs=4)
    outputs = list(
        engine.run(engine.add(Request(prompts[0], 9, sampling, grammar=Grammar.regex("7"))))
    )
    assert "".join(output.text for output in outputs) == "7"
    # Logprobs are those of the model's own logits, which no grammar makes infinite.
    assert all(each.logprob > -float("inf") for output in outputs for each in output.top)


def test_any_json_object_is_an_object(noise: Model, prompts: list[list[int]]) -> None:
    engine = Engine(*noise)
    grammar = Grammar.json_object()
    drawn = [SamplingParams(temperature=1.0, seed=seed) for seed in range(8)]
    handles = [engine.add(Request(prompts[0], 60, sampling, grammar=grammar)) for sampling in drawn]
    finish(engine)
    said = [engine.tokenizer.decode(answer(handle)) for handle in handles]
    assert all(text.startswith("{") for text in said)
    ended = [
        text for text, handle in zip(said, handles, strict=True) if handle.finish_reason == "stop"
    ]
    assert all(isinstance(json.loads(text), dict) for text in ended)


def all_said(engine: Engine, prompt: list[int], grammar: Grammar) -> set[str]:
    """Return the answers for a grammar with several seeds."""
    drawn = [SamplingParams(temperature=1.0, seed=seed) for seed in range(12)]
    handles = [engine.add(Request(prompt, 200, each, grammar=grammar)) for each in drawn]
    finish(engine)
    return {engine.tokenizer.decode(answer(handle)) for handle in handles}


def test_a_choice_gives_one_of_its_texts_exactly(noise: Model, prompts: list[list[int]]) -> None:
    found = all_said(Engine(*noise), prompts[0], Grammar.choice(WORDS))
    assert len(found) > 1
    assert found <= set(WORDS)


def test_a_union_of_grammars_allows_each_of_them(noise: Model, prompts: list[list[int]]) -> None:
    seven, two = Grammar.json_schema({"enum": [7]}), Grammar.regex("x{2}")
    parts = [seven, two, Grammar.lark("start: NO\nNO: /n/")]
    assert all_said(Engine(*noise), prompts[0], Grammar.union(*parts)) == {"7", "xx", "n"}
    for wrong in ([], [Grammar.regex("x", after="y")], [Grammar.union(*parts)]):
        with pytest.raises(ValueError, match="parts"):
            Grammar.union(*wrong)


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar.choice(["use %json here", "b"]),
        Grammar.lark('// %json is not used\nstart: "a"'),
        Grammar.lark('start: %json {"type": "integer", "description": "%json {"}'),
    ],
)
def test_the_name_of_a_directive_may_occur_in_texts(pico: Model, grammar: Grammar) -> None:
    Engine(*pico).add(Request([1], grammar=grammar))


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (Grammar.lark("start: %json {type: 1}"), "key must be a string"),
        (Grammar.regex("a(b"), "unclosed group"),
        (Grammar.lark("start: undefined_rule"), "undefined_rule"),
        (Grammar.json_schema({"type": "objekt"}), "objekt"),
        (replace(Grammar.regex("a("), name="pattern"), "pattern: not a valid regex"),
        (
            Grammar.union(Grammar.regex("a"), Grammar.lark("start: undefined_rule")),
            "undefined_rule",
        ),
        (Grammar.lark("start: start"), "expected one that allows a text"),
        (Grammar.json_schema("{"), "line 1 column 2"),
        (Grammar.json_schema("[" * 100_000 + "]" * 100_000), "levels"),
    ],
)
def test_an_invalid_grammar_is_refused_with_the_reason(
    pico: Model, grammar: Grammar, reason: str
) -> None:
    engine = Engine(*pico)
    with pytest.raises(RequestError, match=reason):
        engine.add(Request([1], grammar=grammar))
    assert not engine.has_work


def test_a_full_queue_of_grammars_is_named(monkeypatch: pytest.MonkeyPatch, pico: Model) -> None:
    started = Event()
    monkeypatch.setattr(GrammarCompiler, "read_vocabulary", lambda _: started.wait())
    worker = GrammarWorker(GrammarCompiler(pico[1], pico[1].vocab_size))
    futures = [worker.submit(Grammar.regex(f"a{{{n}}}"), "a") for n in range(MAX_QUEUED)]
    with pytest.raises(EngineFullError, match=f"{MAX_QUEUED} grammars are waiting"):
        worker.submit(Grammar.regex("b"), "a")
    futures.append(worker.submit(Grammar.regex("b"), "another tenant"))
    worker.close()
    started.set()
    assert all(future.cancelled() for future in futures)


def test_a_tokenizer_with_a_very_long_token_is_refused(pico: Model) -> None:
    token_tree(pico[1], [b"a" * 1024], [0])
    with pytest.raises(ValueError, match="expected tokens of at most 1024 bytes, got one of 1025"):
        token_tree(pico[1], [b"a" * 1025], [0])


def test_requests_that_cannot_end_are_refused(pico: Model) -> None:
    with pytest.raises(RequestError, match="ignore_end"):
        Request([1], grammar=Grammar.json_object(), ignore_end=True)

    class Endless(Tokenizer):
        def __init__(self) -> None:
            self.eos_token_ids = frozenset()

    with pytest.raises(ValueError, match="end token"):
        GrammarCompiler(Endless(), 10).compile(Grammar.json_object())


def test_a_mark_is_found_across_tokens() -> None:
    words = [b"a", b"aab", b"ab", b"b", b"abx", b"aabaab", b"", b"x"]
    prefix = ReasoningPrefix("aab", words)
    assert [prefix.next(0, token) for token in range(8)] == [1, 3, 0, 0, 0, 3, 0, 0]
    assert [prefix.next(1, token) for token in range(8)] == [2, 3, 3, 0, 3, 3, 1, 0]
    assert prefix.next(2, 0) == 2  # the last two of "aaa" may begin the mark
    assert prefix.allowed(0).tolist() == [True] * 5 + [False] + [True] * 2
    assert prefix.allowed(1).tolist() == [True] * 4 + [False, False, True, True]
    assert prefix.is_over(3)
    assert ReasoningPrefix("", words).is_over(0)


def test_a_reasoning_prefix_begins_with_its_opening() -> None:
    words = [b"<", b"<t>", b"<t>a", b"t", b"t>xaab", b"a", b"", b"<t>aabx"]
    prefix = ReasoningPrefix("aab", words, "<t>")
    assert prefix.allowed(0).tolist() == [True, True, True] + [False] * 5
    assert [prefix.next(0, token) for token in range(3)] == [1, 3, 4]
    assert prefix.allowed(1).tolist() == [False] * 3 + [True, True] + [False] * 3
    assert [prefix.next(1, token) for token in (3, 4)] == [2, 6]
    assert prefix.allowed(3).tolist() == [True] * 7 + [False]
    assert [prefix.next(3, token) for token in (0, 5)] == [3, 4]
    assert prefix.is_over(6)
    assert not prefix.is_over(3)


@pytest.mark.parametrize("seed", range(3))
def test_an_opening_is_enforced(noise: Model, prompts: list[list[int]], seed: int) -> None:
    engine = Engine(*noise, EngineSettings(num_speculative_tokens=3))
    bans = dict.fromkeys(engine.tokenizer.eos_token_ids, -100.0)
    drawn = SamplingParams(temperature=1.0, seed=seed, logit_bias=bans)
    grammar = replace(Grammar.regex(DATE, after="e"), opening="<think>")
    handle = engine.add(Request(prompts[0], 800, drawn, grammar=grammar))
    finish(engine)
    text = engine.tokenizer.decode(answer(handle))
    assert text.startswith("<think>")
    check(grammar, text.removeprefix("<think>").partition("e")[2])
