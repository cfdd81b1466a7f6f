"""Keys and values in pages that many sequences share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
from jaxtyping import Float, Int32
from tinyllm_ops import AttentionBlock, Block, OpSet, PagedTokens, QuantizedTensor, Weight

from tinyllm_layers.layer_cache import LayerCache


class PagedCache(LayerCache):
    """The pages of one layer.

    Attributes:
        keys: `P Hkv page D`, dense or quantized.
        values: like keys.
        window: how many tokens a token sees at most, or None.
        tokens: where the tokens of the pass under way stand; to be set before each.
    """

    def __init__(self, keys: Weight, values: Weight, window: int | None = None) -> None:
        """Take pages of keys and values."""
        self.keys = keys
        self.values = values
        self.window = window
        self.tokens: PagedTokens | None = None

    @classmethod
    def empty(
        cls,
        shape: tuple[int, int, int, int],
        dtype: mx.Dtype,
        *,
        bits: int | None = None,
        group_size: int = 0,
        window: int | None = None,
    ) -> PagedCache:
        """Make pages that hold nothing yet; they take memory once they are evaluated.

        Args:
            shape: `P Hkv page D` of the keys, and of the values.
            dtype: of dense numbers, and of the scales of quantized ones.
            bits: width of quantized numbers; None keeps them dense.
            group_size: numbers of D that have a scale in common, where they are quantized.
            window: how many tokens a token sees at most, or None.
        """

        def pages() -> Weight:
            if bits is None:
                return mx.zeros(shape, dtype)
            lead, head_dim = shape[:3], shape[3]
            groups = (*lead, head_dim // group_size)
            return QuantizedTensor(
                mx.zeros((*lead, head_dim * bits // 32), mx.uint32),
                mx.zeros(groups, dtype),
                mx.zeros(groups, dtype),
                group_size,
                bits,
            )

        return cls(pages(), pages(), window)

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays of all pages."""
        return [array for pages in (self.keys, self.values) for array in _arrays(pages)]

    def positions(self, length: int) -> Int32[mx.array, "B {length}"]:
        """As the pass under way has them."""
        return self._tokens.positions.reshape(-1, length)

    def attention_block(
        self, x: Float[mx.array, "B L E"], block: AttentionBlock, ops: OpSet
    ) -> Float[mx.array, "B L E"]:
        """Write new keys and values where they belong, and attend to each token's own pages."""
        y, self.keys, self.values = ops.paged_attention_block(
            x, block, self.keys, self.values, replace(self._tokens, window=self.window)
        )
        return y

    def blocks(
        self,
        x: Float[mx.array, "B L E"],
        blocks: Sequence[Block],
        others: Sequence[LayerCache],
        ops: OpSet,
    ) -> Float[mx.array, "B L E"]:
        """Hand the pages of all blocks to the ops, if a token sees as many in all of them."""
        caches = [
            cache
            for cache in (self, *others)
            if isinstance(cache, PagedCache) and cache.window == self.window
        ]
        if len(caches) < len(blocks):
            return super().blocks(x, blocks, others, ops)
        stores = [(cache.keys, cache.values) for cache in caches]
        y, stores = ops.paged_blocks(x, blocks, stores, replace(self._tokens, window=self.window))
        for cache, store in zip(caches, stores, strict=True):
            cache.keys, cache.values = store
        return y

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages, from the first of each pair to the second."""
        sources = mx.array([source for source, _ in pairs], dtype=mx.int32)
        targets = mx.array([target for _, target in pairs], dtype=mx.int32)

        def copied(pages: mx.array) -> mx.array:
            pages[targets] = pages[sources]
            return pages

        self.keys, self.values = (
            copied(pages) if isinstance(pages, mx.array) else pages.map(copied)
            for pages in (self.keys, self.values)
        )

    @property
    def _tokens(self) -> PagedTokens:
        if self.tokens is None:
            raise ValueError("tokens: expected to be set before a pass, got None")
        return self.tokens


def _arrays(pages: Weight) -> list[mx.array]:
    return list(pages.arrays) if isinstance(pages, QuantizedTensor) else [pages]
