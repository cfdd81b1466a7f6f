"""Fixtures that run a test with every OpSet, on every device, in every dtype."""

from pathlib import Path

import pytest
from hypothesis import settings
from tinyllm_ops.testing.fixtures import device, dtype, ops, unchecked
from tinyllm_ops.testing.pairs import mark_without_new_pair

__all__ = ["device", "dtype", "ops", "unchecked"]

# Draw the same few examples in every run and on every machine, so that a failure can be repeated.
settings.register_profile("repeatable", max_examples=10, derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to exhaustive runs the cases that add no pair of parameter values to a test."""
    mark_without_new_pair(items, Path(__file__).parent)
