"""Grammars of clients take bounded time and memory."""

import json
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import mlx.core as mx
import pytest
from tinyllm_engine import Engine, Grammar, GrammarLimitError, Request, RequestError
from tinyllm_engine.grammar import constraint as constraint_module
from tinyllm_engine.grammar.compiler import GrammarCompiler
from tinyllm_qwen import Qwen, Tokenizer

Model = tuple[Qwen, Tokenizer]
AMBIGUOUS = "start: s\\ns: s s | /[a-z]/"


def chain(count: int) -> Grammar:
    """Return references in a chain, which overflow an ordinary stack."""
    definitions = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(count)}
    return Grammar.json_schema(
        {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{count}": {"type": "string"}}}
    )


def test_a_long_chain_of_references_compiles(pico: Model) -> None:
    Engine(*pico).add(Request([1], grammar=chain(3_000)))


TEXT = {"type": "string"}
MULTIPLE = {"type": "integer", "multipleOf": 99_991}
DEEP: dict[str, object] = {}
for _ in range(40):
    DEEP = {"type": "array", "items": {"anyOf": [DEEP]}}


@pytest.mark.parametrize(
    ("grammar", "limit"),
    [
        (Grammar.choice(["a" * 1000] * 300), "262,144 bytes"),
        (Grammar.union(*[Grammar.regex("a" * 60_000)] * 5), "262,144 bytes"),
        (Grammar.regex("a" * 100_000), "65,536 bytes of a regex"),
        (Grammar.lark("start: T\nT: " + "\n | ".join(['"a"'] * 3_500)), "3,000 lines"),
        (Grammar.lark("start: " + '%json {"type": "string"} ' * 300), "256 JSON schemas"),
        (Grammar.json_schema(DEEP), "64 levels"),
        (Grammar.json_schema("[" * 5_000 + "]" * 5_000), "64 levels"),
        (Grammar.json_schema({"properties": dict.fromkeys(map(str, range(1001)), TEXT)}), "1,000"),
        (Grammar.json_schema({"patternProperties": {f"{i}a": TEXT for i in range(33)}}), "32"),
        (Grammar.json_schema(MULTIPLE), "10,000 as the common multiple"),
        (Grammar.json_schema({"anyOf": [{"multipleOf": 0.97}, {"multipleOf": 1.07}]}), "10,000"),
        (Grammar.lark("start: %json " + json.dumps(MULTIPLE)), "10,000"),
    ],
)
def test_a_large_grammar_is_refused(pico: Model, grammar: Grammar, limit: str) -> None:
    with pytest.raises(RequestError, match=f"expected at most {limit}"):
        Engine(*pico).add(Request([1], grammar=grammar))


def test_the_time_of_masks_is_known_for_each_step(pico: Model) -> None:
    engine = Engine(*pico)
    fields = {f"property_{i}": {"type": "string"} for i in range(500)}
    slow = engine.add(Request([1], 8, grammar=Grammar.json_schema({"properties": fields})))
    fast = engine.add(Request([1], 8, grammar=Grammar.regex("a*")))
    engine.step()
    assert slow.constraint is not None
    assert fast.constraint is not None
    assert 0 < fast.constraint.step_seconds < slow.constraint.step_seconds


@pytest.mark.parametrize("method", ["num_allowed", "masks", "consume"])
def test_the_time_of_each_method_is_limited(
    pico: Model, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Each call takes one second of a fake clock."""
    tokenizer = pico[1]
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    constraint = compiler.compile(Grammar.regex("a*")).constraint()
    clock = SimpleNamespace(thread_time=count(0.0).__next__)
    monkeypatch.setattr(constraint_module, "time", clock)
    getattr(constraint, method)(tokenizer.encode("a"))
    assert constraint.error is not None


@pytest.mark.parametrize(("seconds", "accepted"), [(0.004, 0), (0.004, 3), (0.006, 0), (0.006, 3)])
def test_rejected_draft_tokens_take_no_time_from_the_limit(
    pico: Model, monkeypatch: pytest.MonkeyPatch, seconds: float, accepted: int
) -> None:
    """Masks may take 5 ms of a fake clock for each token, with or without draft tokens."""
    tokenizer, now = pico[1], [0.0]
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    constraint = compiler.compile(Grammar.regex("a*")).constraint()
    mask = constraint._mask

    def slow_mask() -> mx.array:
        now[0] += seconds
        return mask()

    monkeypatch.setattr(constraint_module, "time", SimpleNamespace(thread_time=lambda: now[0]))
    monkeypatch.setattr(constraint, "_mask", slow_mask)
    (token,) = tokenizer.encode("a")
    for _ in range(300):
        constraint.masks([token] * 3)
        assert constraint.step_seconds == pytest.approx(4 * seconds)
        constraint.consume([token] * (1 + accepted))
    assert (constraint.error is not None) == (seconds > 0.005)


def test_a_grammar_that_is_given_up_is_named(pico: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(*pico)
    grammar = replace(Grammar.regex("a*"), name="response_format")
    handle = engine.add(Request([1], 500, grammar=grammar))
    assert handle.constraint is not None
    monkeypatch.setattr(handle.constraint, "_seconds", -1.0)
    with pytest.raises(GrammarLimitError, match=r"^response_format: expected masks that take"):
        list(engine.run(handle))


def test_a_grammar_that_is_given_up_ends_with_an_error(pico: Model) -> None:
    engine = Engine(*pico)
    grammar = Grammar.lark(AMBIGUOUS.replace("\\n", "\n"))
    handle = engine.add(Request([1], 500, grammar=grammar))
    assert handle.constraint is not None
    handle.constraint.error = "grammar: too many states: simplify it"
    with pytest.raises(GrammarLimitError, match="too many states"):
        list(engine.run(handle))
    assert handle.finish_reason == "error"
    assert engine.stats.pages_used == 0
