"""Single requests that cost much: each within a budget of time, memory and other keys' tokens."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pytest
from attack import bodies
from attack.bodies import chat, repeated, with_grammar, with_schema
from attack.victim import CHAT, FAVORED, Budget, Costs, Victim

COMPLETIONS, RESPONSES, EMBEDDINGS = "/v1/completions", "/v1/responses", "/v1/embeddings"
MESSAGES = "/v1/messages"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"

ANSWERS = frozenset({200, 400, 413, 429})
"""Statuses that an attack may get. A 500 is a defect."""

BUDGET = Budget()
"""The budget of most attacks."""


@dataclass(frozen=True)
class Attack:
    """A request, and what it may cost."""

    path: str
    body: Callable[[], bytes]
    budget: Budget = BUDGET
    statuses: frozenset[int] = ANSWERS


def of_text(before: str, after: str) -> Callable[[], bytes]:
    """Return the maker of a body with one long text."""
    return partial(bodies.long_text, before, after)


HEAD = '{"max_tokens":1,"messages":['
ASK = '{"messages":[{"role":"user","content":"a"}],"max_tokens":1,'

ATTACKS = {
    # Grammars: the compiler's stack, its time, and its work for each choice.
    "schema: chain of 1,000 references": Attack(
        CHAT, lambda: with_schema(bodies.reference_chain(1000))
    ),
    "schema: chain of 100,000 references": Attack(
        CHAT, lambda: with_schema(bodies.reference_chain(100_000))
    ),
    "Lark: 2,687 rules": Attack(CHAT, lambda: with_grammar(grammar=bodies.lark_rules(2687))),
    "Lark: 100,000 rules": Attack(CHAT, lambda: with_grammar(grammar=bodies.lark_rules(100_000))),
    "Lark: 8,000 terminals": Attack(
        CHAT, lambda: with_grammar(grammar=bodies.lark_terminals(8000))
    ),
    "schema: 5,000 optional properties": Attack(CHAT, lambda: with_schema(bodies.properties(5000))),
    "schema: 5,000 optional properties, n=16": Attack(
        CHAT, lambda: with_schema(bodies.properties(5000), n=16)
    ),
    "regex: 0.8 MB": Attack(CHAT, lambda: with_grammar(regex="(ab|cd)?" * 100_000)),
    "regex: (((a{1,1000}){1,1000}){1,1000})": Attack(
        CHAT, lambda: with_grammar(regex="(((a{1,1000}){1,1000}){1,1000})")
    ),
    # Lists: the validation of many small items, and the list of their errors.
    "messages: 10 MB of {}": Attack(CHAT, lambda: repeated('{"messages":[', "{}", "]}")),
    "messages: 10 MB of valid messages": Attack(
        CHAT, lambda: repeated(HEAD, '{"role":"user","content":""}', "]}")
    ),
    "content: 10 MB of {}": Attack(
        CHAT, lambda: repeated('{"messages":[{"role":"user","content":[', "{}", "]}]}")
    ),
    "tools: 10 MB of {}": Attack(CHAT, lambda: repeated(ASK + '"tools":[', "{}", "]}")),
    "stop: 10 MB of texts": Attack(CHAT, lambda: repeated(ASK + '"stop":[', '""', "]}")),
    "unknown fields: 10 MB": Attack(CHAT, bodies.unknown_fields),
    "responses, input: 10 MB of {}": Attack(RESPONSES, lambda: repeated('{"input":[', "{}", "]}")),
    "responses, tools: 10 MB of {}": Attack(
        RESPONSES, lambda: repeated('{"input":"a","tools":[', "{}", "]}")
    ),
    "Anthropic, messages: 10 MB of {}": Attack(
        MESSAGES, lambda: repeated('{"model":"pico","max_tokens":1,"messages":[', "{}", "]}")
    ),
    "Anthropic, unknown fields of 10,000 blocks": Attack(MESSAGES, bodies.open_blocks),
    "detokenize: 10 MB of texts": Attack(DETOKENIZE, lambda: repeated('{"tokens":[', '""', "]}")),
    "detokenize: 10 MB of tokens": Attack(DETOKENIZE, lambda: repeated('{"tokens":[', "1", "]}")),
    "embeddings: 10 MB of texts": Attack(EMBEDDINGS, lambda: repeated('{"input":[', '""', "]}")),
    "embeddings: 10 MB of lists": Attack(EMBEDDINGS, lambda: repeated('{"input":[', "[]", "]}")),
    "embeddings: 2,048 texts": Attack(
        EMBEDDINGS, partial(bodies.embeddings, 2048, 1), Budget(seconds=60.0)
    ),
    "completions: 10 MB of tokens": Attack(COMPLETIONS, lambda: repeated('{"prompt":[', "1", "]}")),
    "body: 10 MB of [": Attack(CHAT, lambda: b"[" * bodies.BODY),
    # Long texts: the tokenizer.
    "chat: 9.9 MB of text": Attack(
        CHAT, of_text('{"messages":[{"role":"user","content":"', '"}]}')
    ),
    "completions: 9.9 MB of text": Attack(COMPLETIONS, of_text('{"prompt":"', '"}')),
    "embeddings: 9.9 MB of text": Attack(EMBEDDINGS, of_text('{"input":"', '"}')),
    "tokenize: 9.9 MB of text": Attack(TOKENIZE, of_text('{"prompt":"', '"}')),
    "completions: 9.9 MB of one letter": Attack(
        COMPLETIONS, lambda: b'{"prompt":"' + b"a" * (bodies.BODY - 20) + b'"}'
    ),
    # Sampling fields.
    "16 stops of 1,000 characters, 256 choices": Attack(COMPLETIONS, bodies.many_stops),
    "16 choices of 16 prompts": Attack(COMPLETIONS, bodies.many_choices, Budget(seconds=60.0)),
    "logit_bias: a key of 4,300 digits": Attack(
        CHAT, lambda: chat(logit_bias={"1" * 5000: 1}), statuses=frozenset({400})
    ),
    # Values that broke the template, the log or the answer.
    "chat_template_kwargs: self": Attack(CHAT, lambda: chat(chat_template_kwargs={"self": 1})),
    "tools: nested 900 deep": Attack(CHAT, partial(bodies.nested_tool, 900)),
    "tools: nested 100,000 deep": Attack(CHAT, partial(bodies.nested_tool, 100_000)),
    "responses: half of a surrogate pair": Attack(
        RESPONSES, lambda: b'{"input":"a","max_output_tokens":2,"instructions":"\\ud800"}'
    ),
    "metadata: half of a surrogate pair": Attack(
        RESPONSES, lambda: b'{"input":"a","max_output_tokens":2,"metadata":{"a":"\\ud800"}}'
    ),
    "user: half of a surrogate pair": Attack(CHAT, lambda: chat(user="\ud800")),
}


# A short run has the first among the loads of test_fairness, and other attacks on embeddings.
SLOW = ("16 choices of 16 prompts", "embeddings: 2,048 texts")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.full) if name in SLOW else name for name in ATTACKS],
)
def test_a_request_stays_within_its_budget(name: str, attacked: Victim, costs: Costs) -> None:
    attack = ATTACKS[name]
    body = attack.body()
    statuses: list[int] = []

    def send(victim: Victim) -> None:
        statuses.append(victim.post(attack.path, body, FAVORED).status_code)

    costs.check(name, attacked, send, attack.budget)
    assert set(statuses) <= attack.statuses


@pytest.mark.full
@pytest.mark.parametrize("name", ATTACKS)
def test_eight_requests_at_once_stay_within_their_budget(
    name: str, attacked: Victim, costs: Costs
) -> None:
    attack = ATTACKS[name]
    body = attack.body()
    statuses: set[int] = set()

    def send(victim: Victim) -> None:
        with ThreadPoolExecutor(8) as pool:
            answers = pool.map(lambda _: victim.post(attack.path, body), range(16))
            statuses.update(answer.status_code for answer in answers)

    costs.check(f"{name}, 8 at once", attacked, send, attack.budget.of_several)
    assert statuses <= ANSWERS | {503}
