"""Samples of parametrized tests that contain every pair of parameter values."""

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path

import pytest


def without_new_pair(cases: Iterable[pytest.Function]) -> list[pytest.Function]:
    """Return the cases of a test that add no pair of parameter values to the other cases.

    Cases with most new pairs are chosen first, and of equal ones the first by a hash of the name.
    Cases of different names therefore have different samples. Every pair of parameter values, such
    as a dtype and a format, remains in the sample. A test with one parameter keeps all of its
    cases, and a list of values for several arguments keeps every row.
    """
    new_pairs = {}
    for case in sorted(cases, key=lambda case: zlib.crc32(case.name.encode())):
        values = _values(case)
        new_pairs[case] = set(combinations(values, min(2, len(values))))
    while new_pairs:
        chosen = max(new_pairs, key=lambda case: len(new_pairs[case]))
        found = new_pairs.pop(chosen)
        if not found:
            return [chosen, *new_pairs]
        for pairs in new_pairs.values():
            pairs.difference_update(found)
    return []


def _values(case: pytest.Function) -> list[str]:
    """Return the parameter values of a case; a row of a list for several arguments is one value."""
    params = dict(case.callspec.params)
    rows = []
    for mark in case.iter_markers("parametrize"):
        names = mark.args[0]
        names = names.split(",") if isinstance(names, str) else names
        rows.append([(name.strip(), params.pop(name.strip())) for name in names])
    return sorted(map(repr, [*rows, *params.items()]))


def mark_without_new_pair(items: Sequence[pytest.Item], folder: Path) -> None:
    """Mark the cases as exhaustive that add no pair of parameter values to a test in a folder."""
    cases: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        is_ours = item.path.is_relative_to(folder)
        if is_ours and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for found in cases.values():
        for item in without_new_pair(found):
            item.add_marker(pytest.mark.exhaustive)
