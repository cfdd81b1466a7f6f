"""Keys and values in pages that many sequences share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
from jaxtyping import Float, Int32
from tinyllm_layers import LayerCache
from tinyllm_ops import OpSet, QuantizedTensor, Weight


@dataclass(frozen=True, eq=False)
class PagedTokens:
    """Where the tokens of a pass stand; T of them, of R runs of tokens that follow each other.

    Attributes:
        block_table: the pages of each run's sequence, in order.
        query_starts: where each run begins on the axis of tokens, and where the last one ends.
        context_lengths: tokens of each sequence up to its run's end.
        positions: of each token in its text.
        slots: where each token's key and value are written: page * page size + place in the page;
            -1 for nowhere.
    """

    block_table: Int32[mx.array, "R blocks"]
    query_starts: Int32[mx.array, "R+1"]
    context_lengths: Int32[mx.array, "R"]
    positions: Int32[mx.array, "B L"]
    slots: Int32[mx.array, "T"]


class PagedCache(LayerCache):
    """The pages of one layer.

    Attributes:
        tokens: where the tokens of the pass under way stand; to be set before each.
        window: how many tokens a token sees at most, or None.
    """

    def __init__(self, keys: Weight, values: Weight, window: int | None = None) -> None:
        """Take pages of keys and values, `P Hkv page D` each, dense or quantized."""
        self.keys = keys
        self.values = values
        self.window = window
        self.tokens: PagedTokens | None = None

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays of all pages."""
        return [array for pages in (self.keys, self.values) for array in _arrays(pages)]

    def positions(self, length: int) -> Int32[mx.array, "B L"]:
        """As the pass under way has them.

        Raises:
            ValueError: if it has not so many of a row.
        """
        positions = self._tokens.positions
        if positions.shape[1] != length:
            raise ValueError(f"length: expected {positions.shape[1]}, got {length}")
        return positions

    def attend(
        self,
        q: Float[mx.array, "B H L D"],
        k: Float[mx.array, "B Hkv L D"],
        v: Float[mx.array, "B Hkv L D"],
        scale: float,
        ops: OpSet,
    ) -> Float[mx.array, "B H L D"]:
        """Write k and v where they belong, and attend to the pages of each token's sequence."""
        where = self._tokens
        self.keys = _written(self.keys, k, where.slots, ops)
        self.values = _written(self.values, v, where.slots, ops)
        queries = q.swapaxes(1, 2)  # B L H D
        table = (where.block_table, where.query_starts, where.context_lengths)
        out = ops.paged_attention(
            queries.flatten(0, 1), self.keys, self.values, *table, scale, self.window
        )
        return out.reshape(queries.shape).swapaxes(1, 2)

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


def _written(pages: Weight, new: mx.array, slots: mx.array, ops: OpSet) -> Weight:
    """Pages with the rows of `new`, `B Hkv L D`, in their slots."""
    rows = new.swapaxes(1, 2).flatten(0, 1)  # T Hkv D
    page_size = pages.shape[-2]
    page, place = slots // page_size, slots % page_size

    def put(held: mx.array, fresh: mx.array) -> mx.array:
        held[page, :, place] = fresh
        return held

    if isinstance(pages, mx.array):
        return put(pages, rows)
    codes = ops.quantize(rows, pages.group_size, pages.bits, pages.mode)
    parts = (put(*pair) for pair in zip(pages.arrays, codes.arrays, strict=True))
    packed, scales, biases = parts
    return QuantizedTensor(packed, scales, biases, pages.group_size, pages.bits, pages.mode)


def _arrays(pages: Weight) -> list[mx.array]:
    return list(pages.arrays) if isinstance(pages, QuantizedTensor) else [pages]
