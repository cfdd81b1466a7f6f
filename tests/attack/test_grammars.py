"""Hostile grammars of a generator: each gets an answer, and streams of other keys go on."""

import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from attack import bodies
from attack.victim import CHAT, Budget, Costs, Victim, is_defect
from tinyllm_engine import Grammar

# The engine's tests own the generator, and cannot import from here.
ENGINE_TESTS = Path(__file__).parents[2] / "packages" / "tinyllm-engine" / "tests"

BUDGET = Budget(seconds=900.0, stall=2.0, memory=1_000.0, kept=400.0, gap=3.0, first_token=4.0)
"""Compiled grammars are cached, at most 360 MB of them."""


def request(grammar: Grammar) -> bytes:
    """Return a chat request for an answer that conforms to a grammar."""
    if grammar.kind == "json_schema":
        return bodies.with_schema("SCHEMA").replace(b'"SCHEMA"', grammar.text.encode())
    return bodies.with_grammar(
        **{"lark": {"grammar": grammar.text}}.get(grammar.kind, {"regex": grammar.text})
    )


def test_hostile_grammars_get_an_answer(attacked: Victim, costs: Costs, full: bool) -> None:
    generator = runpy.run_path(str(ENGINE_TESTS / "hostile_grammars.py"))
    grammars = generator["grammars"](seed=0, count=1200 if full else 24)
    requests = list(map(request, grammars))
    wrong: list[str] = []

    def send(body: bytes) -> None:
        answer = attacked.post(CHAT, body)
        if is_defect(answer):
            wrong.append(f"{answer.text[:300]} for {body[:300]!r}")

    def send_all(victim: Victim) -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(send, requests))

    costs.check(f"{len(requests):,} generated grammars", attacked, send_all, BUDGET)
    assert not wrong
