"""Test tools for a new `Stack`: small random layers, caches of all kinds, and batches for them.

Needs the extra `tinyllm-ops[testing]`. Nothing else in `tinyllm_kernels` imports this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
from jaxtyping import Float
from tinyllm_layers import (
    MLP,
    Batch,
    Biases,
    DecoderLayer,
    DenseCache,
    GroupedQueryAttention,
    LayerCache,
    MoE,
    PagedCache,
    QuantizedCache,
    RMSNorm,
    RoPE,
    RotatingCache,
)
from tinyllm_ops import OpSet, PageTable, Weight, Yarn, quantize
from tinyllm_ops.testing import exact, normal

PAGE_SIZE = 4
NUM_PAGES = 12

Form = tuple[str, int, int]
"""Mode, bits and group size of quantized weights."""


@dataclass(frozen=True)
class LayerShape:
    """The sizes of a layer, its family and the format of its weights.

    Attributes:
        family: "qwen2" has biases, "qwen3" norms of heads, "moe" norms of heads and experts.
        form: of quantized weights; None for dense ones.
        width: E.
        heads: H.
        kv_heads: Hkv.
        head_dim: D.
        hidden: F, of one expert where there are experts.
        experts: X.
        chosen: experts a token, K.
        norm_topk_prob: as in `MoE`.
        traditional: as in `RoPE`.
        scaling: as in `RoPE`.
        seq_len: as in `RoPE`.
    """

    family: str = "qwen3"
    form: Form | None = None
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    hidden: int = 96
    experts: int = 5
    chosen: int = 2
    norm_topk_prob: bool = True
    traditional: bool = False
    scaling: Yarn | None = None
    seq_len: int = 4096


def make_layers(
    shape: LayerShape, count: int, dtype: mx.Dtype, ops: OpSet, *, wide: bool = False
) -> list[DecoderLayer]:
    """Make layers with random weights, which depend on the shape, the dtype and nothing else.

    Args:
        shape: sizes, family and format.
        count: number of layers.
        dtype: of dense weights.
        ops: of the layers.
        wide: hold the same numbers as dense float32 weights, for a reference.
    """
    weights = _Weights(dtype, shape.form, wide)
    return [_layer(shape, weights, ops) for _ in range(count)]


def make_caches(kind: str, count: int, shape: LayerShape, dtype: mx.Dtype) -> list[LayerCache]:
    """Make empty caches.

    Args:
        kind: "dense", "rotating", "quantized-BITS", "paged", "paged-BITS" or "window-TOKENS".
        count: number of layers.
        shape: of the layers.
        dtype: of keys and values.
    """
    name, _, number = kind.partition("-")
    pages = (NUM_PAGES, shape.kv_heads, PAGE_SIZE, shape.head_dim)

    def cache() -> LayerCache:
        if name == "dense":
            return DenseCache()
        if name == "rotating":
            return RotatingCache(6, keep=1)
        if name == "quantized":
            return QuantizedCache(int(number), 32)
        if name == "window":
            return PagedCache.empty(pages, dtype, window=int(number))
        bits = int(number) if number else None
        return PagedCache.empty(pages, dtype, bits=bits, group_size=32)

    return [cache() for _ in range(count)]


def make_batches(kind: str) -> list[Batch]:
    """Make passes over two sequences for caches of a kind.

    They are a prompt, a chunk of one token, a decode step, a longer chunk, and a decode step. In
    the last pass over pages, two tokens of one sequence are decoded at once.
    """
    if not _is_paged(kind):
        return [
            Batch.at(0, 2, 5),
            Batch.at(5, 2, 1, "prefill"),
            Batch.at(6, 2, 1),
            Batch.at(7, 2, 3),
            Batch.at(10, 2, 1),
        ]
    first, second = (7, 2, 9), (4, 0, 11)
    return [
        Batch.paged(make_table((first, 0, 5), (second, 0, 2)), "prefill"),
        Batch.paged(make_table((first, 5, 6)), "prefill"),
        Batch.paged(make_table((first, 6, 7), (second, 2, 3)), "decode"),
        Batch.paged(make_table((second, 3, 9), (first, 7, 9)), "prefill"),
        Batch.paged(make_table((second, 9, 10), (first, 9, 10), (second, 10, 11)), "decode"),
    ]


def make_table(*chunks: tuple[Sequence[int], int, int]) -> PageTable:
    """Make a table over the pages of `make_caches`."""
    return PageTable.of(chunks, num_pages=NUM_PAGES, page_size=PAGE_SIZE)


def make_input(
    batch: Batch, width: int, dtype: mx.Dtype, *, seed: int
) -> Float[mx.array, "B L {width}"]:
    """Make random embedded tokens for a batch."""
    return normal((batch.rows, batch.length, width), dtype, seed=seed)


def same_bits(a: mx.array, b: mx.array) -> bool:
    """Return True for arrays of equal bits: zero is not minus zero, and a NaN equals itself."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    width = {4: mx.uint32, 2: mx.uint16}[a.dtype.size]
    return bool(mx.array_equal(a.view(width), b.view(width)))


def _is_paged(kind: str) -> bool:
    return kind.partition("-")[0] in ("paged", "window")


class _Weights:
    """A sequence of random weights."""

    def __init__(self, dtype: mx.Dtype, form: Form | None, wide: bool) -> None:
        self._dtype = dtype
        self._form = form
        self._wide = wide
        self._seed = 0

    def matrix(self, *shape: int) -> Weight:
        w = self._normal(shape, shape[-1] ** -0.5)
        if self._form is None:
            return self._widened(w)
        mode, bits, group = self._form
        return self._widened(quantize(w, group, bits, mode))

    def router(self, *shape: int) -> Weight:
        return self._widened(self._normal(shape, 1.0))

    def vector(self, size: int, around: float) -> mx.array:
        numbers = (self._normal((size,), 0.2) + around).astype(self._dtype)
        return numbers.astype(mx.float32) if self._wide else numbers

    def _normal(self, shape: Sequence[int], magnitude: float) -> mx.array:
        self._seed += 1
        return normal(shape, self._dtype, seed=self._seed, magnitude=magnitude)

    def _widened(self, w: Weight) -> Weight:
        return mx.array(exact(w)).astype(mx.float32) if self._wide else w


def _layer(s: LayerShape, weights: _Weights, ops: OpSet) -> DecoderLayer:
    before, after = (
        RMSNorm(s.width, weights.vector(s.width, 1.0), 1e-6, ops=ops) for _ in range(2)
    )
    return DecoderLayer(before, _attention(s, weights, ops), after, _mlp(s, weights, ops))


def _attention(s: LayerShape, weights: _Weights, ops: OpSet) -> GroupedQueryAttention:
    width, kv_width = s.heads * s.head_dim, s.kv_heads * s.head_dim
    wq, wk, wv, wo = (
        weights.matrix(*sizes)
        for sizes in ((width, s.width), (kv_width, s.width), (kv_width, s.width), (s.width, width))
    )
    biased = s.family == "qwen2"
    return GroupedQueryAttention(
        s.width,
        s.heads,
        s.kv_heads,
        s.head_dim,
        wq,
        wk,
        wv,
        wo,
        rope=RoPE(s.head_dim, s.seq_len, 1e4, s.traditional, scaling=s.scaling, ops=ops),
        biases=Biases(*(weights.vector(size, 0.0) for size in (width, kv_width, kv_width, s.width)))
        if biased
        else Biases(),
        q_norm=None if biased else weights.vector(s.head_dim, 1.0),
        k_norm=None if biased else weights.vector(s.head_dim, 1.0),
        ops=ops,
    )


def _mlp(s: LayerShape, weights: _Weights, ops: OpSet) -> MLP | MoE:
    lead = (s.experts,) if s.family == "moe" else ()
    gate, up, down = (
        weights.matrix(*lead, *sizes)
        for sizes in ((s.hidden, s.width), (s.hidden, s.width), (s.width, s.hidden))
    )
    if s.family != "moe":
        return MLP(s.width, s.hidden, gate, up, down, ops=ops)
    return MoE(
        s.width,
        s.hidden,
        s.experts,
        s.chosen,
        weights.router(s.experts, s.width),
        gate,
        up,
        down,
        norm_topk_prob=s.norm_topk_prob,
        ops=ops,
    )
