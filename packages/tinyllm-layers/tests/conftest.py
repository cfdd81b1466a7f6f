"""Fixtures: every OpSet, device and dtype, random weights and texts, and passes over caches."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import mlx.core as mx
import pytest
from hypothesis import settings
from tinyllm_layers import Batch, KVCache
from tinyllm_layers.testing import packed
from tinyllm_ops import REFERENCE, OpSet, Phase, Weight
from tinyllm_ops.testing import normal
from tinyllm_ops.testing.fixtures import device, dtype, ops, unchecked
from tinyllm_ops.testing.pairs import mark_without_new_pair

__all__ = ["attend", "device", "dtype", "ops", "projection", "random_qkv", "unchecked"]

# Draw the same few examples in every run and on every machine, so that a failure can be repeated.
settings.register_profile("repeatable", max_examples=10, derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to exhaustive runs the cases that add no pair of parameter values to a test."""
    mark_without_new_pair(items, Path(__file__).parent)


@pytest.fixture(scope="session")
def projection() -> Callable[..., Weight]:
    """Return a function that makes random weights `O I` under which activations keep their size."""

    def make(
        rows: int, columns: int, dtype: mx.Dtype = mx.float32, *, seed: int, bits: int | None = None
    ) -> Weight:
        return packed(bits)(normal((rows, columns), dtype, seed=seed, magnitude=columns**-0.5))

    return make


@pytest.fixture(scope="session")
def attend() -> Callable[..., mx.array]:
    """Return a function that passes a text to a cache in chunks, cut before the tokens `cuts`."""

    def run(
        cache: KVCache,
        qkv: tuple[mx.array, mx.array, mx.array],
        cuts: Sequence[int] = (),
        ops: OpSet = REFERENCE,
        phase: Phase | None = None,
    ) -> mx.array:
        rows, _, length, dim = qkv[0].shape
        edges = sorted({0, length} | {cut for cut in cuts if cut < length})
        outs = []
        for a, b in pairwise(edges):
            batch = Batch.at(cache.offset, rows, b - a, phase)
            chunk = (part[:, :, a:b] for part in qkv)
            outs.append(cache.attend(*chunk, batch, dim**-0.5, ops))  # type: ignore[arg-type, call-arg]
        return mx.concatenate(outs, axis=2)

    return run


@pytest.fixture(scope="session")
def random_qkv() -> Callable[..., tuple[mx.array, mx.array, mx.array]]:
    """Return a function that draws queries, keys and values for a shape (B, H, Hkv, L, D)."""

    def make(
        shape: tuple[int, int, int, int, int], dtype: mx.Dtype = mx.float32, *, seed: int = 0
    ) -> tuple[mx.array, mx.array, mx.array]:
        rows, heads, kv_heads, length, dim = shape
        q = normal((rows, heads, length, dim), dtype, seed=seed)
        k = normal((rows, kv_heads, length, dim), dtype, seed=seed + 1)
        return q, k, normal((rows, kv_heads, length, dim), dtype, seed=seed + 2)

    return make
