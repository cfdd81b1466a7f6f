"""Fixtures that run a test with every OpSet, on every device, in every dtype."""

from hypothesis import settings
from tinyllm_ops.testing.fixtures import device, dtype, ops, unchecked

__all__ = ["device", "dtype", "ops", "unchecked"]

# Draw the same few examples in every run and on every machine, so that a failure can be repeated.
settings.register_profile("repeatable", max_examples=10, derandomize=True, deadline=None)
settings.load_profile("repeatable")
