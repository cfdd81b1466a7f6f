"""Every layer and cache, over every OpSet, on every device, in every dtype, against float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import jaxtyping
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import settings
from numpy.typing import NDArray
from tinyllm_layers import Biases, GroupedQueryAttention, KVCache, RMSNorm, RoPE
from tinyllm_ops import REFERENCE, OpSet, Weight, quantize
from tinyllm_ops.testing import DEVICES, OPSETS, TOLERANCE, exact, normal, oracle

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
    """One implementation, on one device."""
    opset: OpSet = request.param
    return opset


@pytest.fixture(params=TOLERANCE, ids=lambda dtype: str(dtype).removeprefix("mlx.core."))
def dtype(request: pytest.FixtureRequest) -> mx.Dtype:
    """Each dtype that the contract names."""
    chosen: mx.Dtype = request.param
    return chosen


@pytest.fixture
def unchecked() -> Iterator[None]:
    """See what a user sees: under pytest the signatures' own run-time check would speak first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def projection() -> Callable[..., Weight]:
    """Random weights `O I` under which numbers keep their size."""

    def make(
        rows: int, columns: int, dtype: mx.Dtype = mx.float32, *, seed: int, bits: int | None = None
    ) -> Weight:
        w = normal((rows, columns), dtype, seed=seed, magnitude=columns**-0.5)
        return w if bits is None else quantize(w, 32, bits)

    return make


@pytest.fixture(scope="session")
def make_attention(projection: Callable[..., Weight]) -> Callable[..., GroupedQueryAttention]:
    """A grouped-query attention with random weights."""

    def make(
        hidden: int,
        heads: int,
        kv_heads: int,
        dim: int,
        *,
        biased: str = "",
        normed: bool = False,
        dtype: mx.Dtype = mx.float32,
        bits: int | None = None,
        ops: OpSet = REFERENCE,
    ) -> GroupedQueryAttention:
        rows = {"q": heads * dim, "k": kv_heads * dim, "v": kv_heads * dim, "o": hidden}
        w = {
            name: projection(n, heads * dim if name == "o" else hidden, dtype, seed=i, bits=bits)
            for i, (name, n) in enumerate(rows.items())
        }
        biases = {
            name: normal((n,), dtype, seed=10 + i) if name in biased else None
            for i, (name, n) in enumerate(rows.items())
        }
        norms = [RMSNorm(dim, normal((dim,), dtype, seed=s), 1e-6, ops=ops) for s in (20, 21)]
        return GroupedQueryAttention(
            hidden,
            heads,
            kv_heads,
            dim,
            w["q"],
            w["k"],
            w["v"],
            w["o"],
            rope=RoPE(dim, 1000, 1e6, ops=ops),
            biases=Biases(**biases),
            q_norm=norms[0] if normed else None,
            k_norm=norms[1] if normed else None,
            ops=ops,
        )

    return make


@pytest.fixture(scope="session")
def attention_oracle() -> Callable[..., NDArray[np.float64]]:
    """What the weights of a GroupedQueryAttention make of a whole text, in float64."""

    def compute(layer: GroupedQueryAttention, x: NDArray[np.float64]) -> NDArray[np.float64]:
        rows, length, _ = x.shape
        positions = np.arange(length)

        def heads(w: Weight, bias: mx.array | None, norm: RMSNorm | None) -> NDArray[np.float64]:
            y = oracle.linear(x, exact(w), None if bias is None else exact(bias))
            y = y.reshape(rows, length, w.shape[0] // layer.head_dim, layer.head_dim)
            return y if norm is None else oracle.rms_norm(y, exact(norm.weight), norm.eps)

        q = oracle.rope(heads(layer.wq, layer.biases.q, layer.q_norm), positions, layer.rope.base)
        k = oracle.rope(heads(layer.wk, layer.biases.k, layer.k_norm), positions, layer.rope.base)
        v = heads(layer.wv, layer.biases.v, None)
        q, k, v = (part.swapaxes(1, 2) for part in (q, k, v))
        out = oracle.attention(q, k, v, mask="causal").swapaxes(1, 2)
        bias = None if layer.biases.o is None else exact(layer.biases.o)
        width = layer.num_heads * layer.head_dim
        return oracle.linear(out.reshape(rows, length, width), exact(layer.wo), bias)

    return compute


@pytest.fixture(scope="session")
def attend() -> Callable[..., mx.array]:
    """Hand a text to a cache, cut before each of the given tokens."""

    def run(
        cache: KVCache,
        qkv: tuple[mx.array, mx.array, mx.array],
        cuts: Sequence[int] = (),
        ops: OpSet = REFERENCE,
    ) -> mx.array:
        length, dim = qkv[0].shape[2:]
        edges = sorted({0, length} | {cut for cut in cuts if cut < length})
        outs = [
            cache.attend(*(part[:, :, a:b] for part in qkv), dim**-0.5, ops)
            for a, b in pairwise(edges)
        ]
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
