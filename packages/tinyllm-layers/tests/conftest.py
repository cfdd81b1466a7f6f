"""Fixtures: every OpSet, on every device, in every dtype; random texts and passes over caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import jaxtyping
import mlx.core as mx
import pytest
from hypothesis import settings
from tinyllm_layers import Batch, KVCache
from tinyllm_layers.testing import packed
from tinyllm_ops import REFERENCE, OpSet, Phase, Weight
from tinyllm_ops.testing import DEVICES, OPSETS, TOLERANCE, normal

# The same few examples on every run and every machine: a failure here is one that repeats.
settings.register_profile("repeatable", max_examples=10, derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(params=DEVICES, ids=lambda device: str(device.type).removeprefix("DeviceType."))
def device(request: pytest.FixtureRequest) -> Iterator[mx.Device]:
    """Compute on this device for the length of a test."""
    before = mx.default_device()
    mx.set_default_device(request.param)
    yield request.param
    mx.set_default_device(before)


@pytest.fixture(params=OPSETS, ids=lambda opset: opset.name)
def ops(request: pytest.FixtureRequest, device: mx.Device) -> OpSet:
    """Run a test with each implementation on each device."""
    opset: OpSet = request.param
    return opset


@pytest.fixture(params=TOLERANCE, ids=lambda dtype: str(dtype).removeprefix("mlx.core."))
def dtype(request: pytest.FixtureRequest) -> mx.Dtype:
    """Run a test with each dtype of the contract."""
    chosen: mx.Dtype = request.param
    return chosen


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Turn off the run-time check of signatures, which users do not have."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def projection() -> Callable[..., Weight]:
    """Make random weights `O I` under which activations keep their magnitude."""

    def make(
        rows: int, columns: int, dtype: mx.Dtype = mx.float32, *, seed: int, bits: int | None = None
    ) -> Weight:
        return packed(bits)(normal((rows, columns), dtype, seed=seed, magnitude=columns**-0.5))

    return make


@pytest.fixture(scope="session")
def attend() -> Callable[..., mx.array]:
    """Let a cache attend to a text, cut before each of the given tokens."""

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
    """Queries of H heads, keys and values of Hkv, for B rows of L tokens."""

    def make(
        shape: tuple[int, int, int, int, int], dtype: mx.Dtype = mx.float32, *, seed: int = 0
    ) -> tuple[mx.array, mx.array, mx.array]:
        rows, heads, kv_heads, length, dim = shape
        q = normal((rows, heads, length, dim), dtype, seed=seed)
        k = normal((rows, kv_heads, length, dim), dtype, seed=seed + 1)
        return q, k, normal((rows, kv_heads, length, dim), dtype, seed=seed + 2)

    return make
