"""Mutated requests, and requests of schemathesis: no 500, no hang, no exception in the log."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import pytest
import schemathesis
from attack.mutations import mutate
from attack.victim import HOSTILE, Victim, is_defect
from hypothesis import HealthCheck, given, seed, settings
from hypothesis.strategies import SearchStrategy
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error

CLIENTS = 4
LONGEST_ANSWER = 60.0
"""Seconds. A mutated request may ask for 16 answers of 2,000 tokens to 20 prompts."""

LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


@pytest.mark.parametrize("client", range(CLIENTS))
def test_mutated_requests_get_an_answer(client: int, attacked: Victim, full: bool) -> None:
    draw = random.Random(client)
    end = time.monotonic() + (75 if full else 2)
    count = 0
    with ThreadPoolExecutor(4) as pool:
        while time.monotonic() < end:
            requests = [mutate(draw) for _ in range(16)]
            answers = pool.map(lambda each: attacked.post(each.path, each.body), requests)
            for request, answer in zip(requests, answers, strict=True):
                count += 1
                assert not is_defect(answer), (request, answer.text[:500])
                assert answer.elapsed.total_seconds() < LONGEST_ANSWER, request
    assert count >= 16
    attacked.check()


@pytest.mark.full  # the tests of serve have a short form
def test_requests_made_from_the_openapi_document_get_an_answer(attacked: Victim) -> None:
    document = schemathesis.openapi.from_url(f"{attacked.url}/openapi.json")
    key = {"Authorization": f"Bearer {HOSTILE}"}

    def holds(case: schemathesis.Case[Any]) -> None:
        if isinstance(case.body, dict):
            for name in LENGTHS:
                if isinstance(case.body.get(name), int) and case.body[name] > 8:
                    case.body[name] = 8
        answer = case.call(headers=key)
        if b"grammar_limit" not in answer.content:
            case.validate_response(answer, checks=[not_a_server_error])

    operations = [result.ok() for result in document.get_all_operations()]
    assert len(operations) >= 11
    some = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    for operation, mode in product(operations, GenerationMode):
        if mode is GenerationMode.POSITIVE or operation.body:
            cases: SearchStrategy[schemathesis.Case[Any]]
            cases = operation.as_strategy(generation_mode=mode)
            some(seed(0)(given(cases)(holds)))()
    attacked.check()
