"""Test tools for a new `Stack`: small random layers, caches of all kinds, and batches for them.

The module needs the extra `tinyllm-ops[testing]`. Nothing else in `tinyllm_kernels` imports it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TypeVar

import mlx.core as mx
from jaxtyping import Float
from tinyllm_layers import (
    Batch,
    DecoderLayer,
    DenseCache,
    LayerCache,
    MoE,
    PagedCache,
    QuantizedCache,
    RoPE,
    RotatingCache,
)
from tinyllm_layers.cache.dense import GrowingCache
from tinyllm_layers.testing import Family, packed, random_decoder_layer
from tinyllm_ops import REFERENCE, OpSet, PageTable, QuantizationMode, QuantizedTensor, Yarn
from tinyllm_ops.testing import exact, normal

PAGE_SIZE = 4  # tokens per page of `make_caches`
NUM_PAGES = 12  # pages of `make_caches` and `make_table`

WeightFormat = tuple[QuantizationMode, int, int]
"""Mode, bits and group size of quantized weights."""

L = TypeVar("L")


@dataclass(frozen=True)
class LayerShape:
    """The sizes of a layer, its family and the format of its weights.

    Attributes:
        family: see `tinyllm_layers.testing.Family`.
        weight_format: the format of quantized weights; None for dense weights.
        width: E.
        heads: H.
        kv_heads: Hkv.
        head_dim: D.
        hidden: F of the MLP, or of one expert.
        experts: X.
        chosen: K, the number of experts per token.
        shared: F of a shared expert; 0 for none.
        norm_topk_prob: as in `MoE`.
        traditional: as in `RoPE`.
        scaling: as in `RoPE`.
        seq_len: as in `RoPE`.
    """

    family: Family = "qwen3"
    weight_format: WeightFormat | None = None
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    hidden: int = 96
    experts: int = 5
    chosen: int = 2
    shared: int = 0
    norm_topk_prob: bool = True
    traditional: bool = False
    scaling: Yarn | None = None
    seq_len: int = 4096


def make_layers(shape: LayerShape, count: int, dtype: mx.Dtype, ops: OpSet) -> list[DecoderLayer]:
    """Make layers with random weights, equal in every call with the same shape and dtype."""
    mode, bits, group = shape.weight_format or ("affine", None, 32)
    layers = [
        random_decoder_layer(
            shape.family,
            shape.width,
            num_heads=shape.heads,
            num_kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            hidden_dim=shape.hidden,
            num_experts=shape.experts,
            num_experts_per_tok=shape.chosen,
            shared_dim=shape.shared,
            dtype=dtype,
            pack=packed(bits, group, mode),
            seed=seed,
            rope=RoPE(
                shape.head_dim,
                shape.seq_len,
                1e4,
                shape.traditional,
                scaling=shape.scaling,
                ops=ops,
            ),
            ops=ops,
        )
        for seed in range(count)
    ]
    return [
        replace(layer, mlp=replace(layer.mlp, norm_topk_prob=shape.norm_topk_prob))
        if isinstance(layer.mlp, MoE)
        else layer
        for layer in layers
    ]


def as_reference(layer: L) -> L:
    """Return a copy of the layer with the ops of `REFERENCE` and dense float32 weights."""
    if isinstance(layer, mx.array | QuantizedTensor):
        return mx.array(exact(layer)).astype(mx.float32)  # type: ignore[return-value] # L is a Weight
    if isinstance(layer, OpSet):
        return REFERENCE  # type: ignore[return-value] # L is OpSet
    if not is_dataclass(layer) or isinstance(layer, type):
        return layer
    values = {field.name: as_reference(getattr(layer, field.name)) for field in fields(layer)}
    return replace(layer, **values)


def make_caches(kind: str, count: int, shape: LayerShape, dtype: mx.Dtype) -> list[LayerCache]:
    """Make empty caches.

    Args:
        kind: "dense", "rotating", "quantized-BITS", "paged", "paged-BITS" or "window-TOKENS".
        count: number of layers.
        shape: the shape of the layers.
        dtype: the dtype of keys and values.
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


def stored(cache: LayerCache) -> list[mx.array]:
    """Return the arrays of a cache, without undefined capacity for later tokens."""
    if isinstance(cache, GrowingCache):
        return [array[..., : cache.offset, :] for array in cache.arrays]
    return cache.arrays


def make_batches(kind: str) -> list[Batch]:
    """Make the batches of five or six passes over two sequences.

    The passes are a prompt, a chunk of one token, a decode step, a longer chunk, a decode step, and
    a decode step of several tokens, as with draft tokens. Over pages, the last two are one pass.

    Args:
        kind: the kind of the caches; see `make_caches`.
    """
    if not _is_paged(kind):
        return [
            Batch.at(0, 2, 5),
            Batch.at(5, 2, 1, "prefill"),
            Batch.at(6, 2, 1),
            Batch.at(7, 2, 3),
            Batch.at(10, 2, 1),
            Batch.at(11, 2, 3, "decode"),
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
    """Make a table of the pages of `make_caches`; see `PageTable.of` for the chunks."""
    return PageTable.of(chunks, num_pages=NUM_PAGES, page_size=PAGE_SIZE)


def make_input(
    batch: Batch, width: int, dtype: mx.Dtype, *, seed: int
) -> Float[mx.array, "B L {width}"]:
    """Make random embedded tokens for a batch."""
    return normal((batch.rows, batch.length, width), dtype, seed=seed)


def same_bits(a: mx.array, b: mx.array) -> bool:
    """Return True if a and b have equal bits: 0.0 differs from -0.0, and a NaN equals itself."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    width = {4: mx.uint32, 2: mx.uint16}[a.dtype.size]
    return bool(mx.array_equal(a.view(width), b.view(width)))


def _is_paged(kind: str) -> bool:
    return kind.partition("-")[0] in ("paged", "window")
