"""Exercises whose results are token ids: top-p, and the acceptance of draft tokens."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from tinyllm_ops.testing import oracle
from tinyllm_ops.testing.exercises.case import call, failure, kind, passed


def grade_top_p(solution: Callable[[list[float], float], set[int]]) -> str:
    """Grade `top_p(scores, p)`: the smallest set of best tokens whose probability reaches p.

    Raises:
        ExerciseError: if a set is wrong.
    """
    flat, steep = [1.0, 1.0, 1.0, 1.0], [0.0, 3.0, 1.0, 2.0]
    large, banned = [1000.0, 999.0, 990.0], [1.0, -math.inf, 0.0]
    halves = [1.0, -math.inf, 1.0]  # each 0.5, so that no rounding keeps the sum below 1
    reaching = "keep the best tokens until their sum reaches p, the last of them too"
    ban = "a banned token has the probability 0"
    order = "sort by score, the best first; the result has ids, not ranks"
    cases = [
        ("p = 1", steep, 1.0, reaching),
        ("p = 0.6, best token 0.64", steep, 0.6, reaching),
        ("p = 0.7", steep, 0.7, order),
        ("p = 0.001", steep, 0.001, "the best token always stays"),
        ("scores of 1,000", large, 0.9, "subtract the largest score before exp"),
        ("a token of score -inf", banned, 0.9, ban),
        ("p = 1, a token of score -inf", halves, 1.0, f"{ban}: the sum is 1 without it"),
        ("100 tokens", np.random.default_rng(11).normal(size=100).tolist(), 0.8, order),
    ]
    for name, scores, p, hint in cases:
        expected = _nucleus(scores, p)
        result = call(name, solution, (list(scores), p))
        if not isinstance(result, set):
            found = f"expected a set, got {kind(result)}"
            raise failure("top_p", name, found, "return the set of the ids that stay")
        if result != expected:
            raise failure("top_p", name, f"expected {expected}, got {result!r}", hint)
    result = call("four equal tokens, p = 0.5", solution, (flat, 0.5))
    tokens = set(range(len(flat)))
    if not isinstance(result, set) or len(result) != len(flat) // 2 or not result <= tokens:
        found = f"expected 2 of the 4 equal tokens, got {result!r}"
        raise failure("top_p", "four equal tokens, p = 0.5", found, "stop when the sum is p")
    return passed("top_p", len(cases) + 1)


def _nucleus(scores: Sequence[float], p: float) -> set[int]:
    """Add the best token that is left until the sum reaches p."""
    probability = oracle.softmax(np.array(scores))
    kept: set[int] = set()
    mass = 0.0
    while mass < p - 1e-12:  # rounding: the sum over all tokens may end below 1
        best = max(set(range(len(scores))) - kept, key=lambda token: float(probability[token]))
        kept.add(best)
        mass += float(probability[best])
    return kept


def grade_accept(solution: Callable[[list[int], list[int]], list[int]]) -> str:
    """Grade `accept(draft, choices)`: the tokens that a step with draft tokens appends.

    `choices[i]` is the token that the model chooses after the text and `draft[:i]`. There is one
    choice more than draft tokens. The expected result is that of a model that decodes one token at
    a time.

    Raises:
        ExerciseError: if a list is wrong.
    """
    wrong = "after the first draft token that is not the choice, later choices mean nothing"
    more = "the choice after the last accepted draft token is a token of the model: append it"
    cases = [
        ("no draft", [], [7], more),
        ("all accepted", [5, 6, 7], [5, 6, 7, 8], more),
        ("none accepted", [5, 6, 7], [9, 6, 7, 8], wrong),
        ("one accepted", [5, 6, 7], [5, 9, 7, 8], wrong),
        ("a match after a mismatch", [5, 6, 7, 8], [5, 6, 9, 8, 3], wrong),
        ("equal tokens", [4, 4, 4], [4, 4, 4, 4], more),
    ]
    for name, draft, choices, hint in cases:
        expected = _step_by_step(draft, choices)
        result = call(name, solution, (list(draft), list(choices)))
        if not isinstance(result, list):
            found = f"expected a list, got {kind(result)}"
            raise failure("accept", name, found, "return the list of the tokens to append")
        if result != expected:
            found = f"draft {draft}, choices {choices}: expected {expected}, got {result!r}"
            raise failure("accept", name, found, hint)
    return passed("accept", len(cases))


def _step_by_step(draft: Sequence[int], choices: Sequence[int]) -> list[int]:
    """Decode one token at a time while the text is one whose next token is known."""
    known = {tuple(draft[:i]): choice for i, choice in enumerate(choices)}
    text: list[int] = []
    while tuple(text) in known:
        text.append(known[tuple(text)])
    return text
