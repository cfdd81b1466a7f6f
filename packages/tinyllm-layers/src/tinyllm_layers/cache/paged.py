"""Keys and values in pages that many sequences share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import OpSet, QuantizedTensor, Weight, write_pages
from tinyllm_ops.checks import check_new_tokens

from tinyllm_layers.batch import Batch
from tinyllm_layers.cache.base import LayerCache
from tinyllm_layers.cache.dense import another_name


class PagedCache(LayerCache):
    """The pages of one layer (Kwon et al. 2023). A `PageTable` assigns them to sequences.

    Attributes:
        keys: `P Hkv page D`, dense or quantized.
        values: like keys.
        window: the most recent tokens that a token sees; None for all.
    """

    def __init__(self, keys: Weight, values: Weight, window: int | None = None) -> None:
        """Take pages of keys and values."""
        self.keys = keys
        self.values = values
        self.window = window

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
        """Make empty pages. They take memory once they are evaluated.

        Args:
            shape: `P Hkv page D` of the keys, and of the values.
            dtype: the dtype of dense numbers, or of the scales of quantized numbers.
            bits: width of quantized numbers; None keeps them dense.
            group_size: the number of neighbors along D that share a scale, if quantized.
            window: the most recent tokens that a token sees; None for all.
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

    @property
    def num_pages(self) -> int:
        """The number of pages, P."""
        return self.keys.shape[0]

    @property
    def page_size(self) -> int:
        """The number of tokens in a page."""
        return self.keys.shape[2]

    def attend(
        self,
        q: Float[mx.array, "B H L D"],
        k: Float[mx.array, "B Hkv L D"],
        v: Float[mx.array, "B Hkv L D"],
        batch: Batch,
        scale: float,
        ops: OpSet,
    ) -> Float[mx.array, "B H L D"]:
        """Write k and v to their slots, and attend from each query to its own sequence."""
        if batch.pages is None:
            raise ValueError("batch: expected a page table for a paged cache, got None")
        check_new_tokens(q, k, v, (batch.rows, batch.length))
        q, k, v = (x.swapaxes(1, 2).flatten(0, 1) for x in (q, k, v))  # T heads D
        keys = write_pages(self.keys, _in_format(k, self.keys, ops), batch.pages)
        values = write_pages(self.values, _in_format(v, self.values, ops), batch.pages)
        out = ops.paged_attention(
            q, keys, values, batch.pages, scale, self.window, phase=batch.phase
        )
        self.commit(keys, values)
        return mx.unflatten(out, 0, (batch.rows, batch.length)).swapaxes(1, 2)

    def commit(self, keys: Weight, values: Weight) -> None:
        """Replace the pages by their successors, in which the tokens of a pass are written."""
        self.keys = keys
        self.values = values

    def fork(self) -> PagedCache:
        """Return a second cache with the same pages; the next write to either copies all."""
        return PagedCache(_named_anew(self.keys), _named_anew(self.values), self.window)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages at once: every source is read before any target is written.

        Args:
            pairs: the source and the target of each copy.

        Raises:
            ValueError: if a page does not exist.
        """
        numbers = [page for pair in pairs for page in pair]
        if not numbers:
            return
        if not 0 <= min(numbers) <= max(numbers) < self.num_pages:
            raise ValueError(
                f"pairs: expected pages from 0 to {self.num_pages - 1}, got {list(pairs)}"
            )
        sources = mx.array([source for source, _ in pairs], dtype=mx.int32)
        targets = mx.array([target for _, target in pairs], dtype=mx.int32)
        keys, values = self.keys[sources], self.values[sources]
        # A read that has not ended holds the array, and the write would copy every page of it.
        mx.eval(_arrays(keys), _arrays(values))
        self.commit(_replaced(self.keys, targets, keys), _replaced(self.values, targets, values))


def _arrays(pages: Weight) -> list[mx.array]:
    return list(pages.arrays) if isinstance(pages, QuantizedTensor) else [pages]


def _named_anew(pages: Weight) -> Weight:
    return another_name(pages) if isinstance(pages, mx.array) else pages.map(another_name)


def _in_format(rows: mx.array, stored: Weight, ops: OpSet) -> Weight:
    """Return rows in the format of the pages, quantized if the pages are."""
    if isinstance(stored, mx.array):
        return rows
    return ops.quantize(rows, stored.group_size, stored.bits, stored.mode)


def _replaced(pages: Weight, targets: mx.array, rows: Weight) -> Weight:
    """Return pages in which the pages at `targets` are replaced by `rows`."""

    def replaced(part: mx.array, new: mx.array) -> mx.array:
        part = another_name(part)
        part[targets] = new
        return part

    if isinstance(pages, mx.array):
        assert isinstance(rows, mx.array)  # in the format of the pages
        return replaced(pages, rows)
    assert isinstance(rows, QuantizedTensor)
    pairs = zip(pages.arrays, rows.arrays, strict=True)
    packed, scales, *biases = (replaced(*pair) for pair in pairs)
    return replace(pages, packed=packed, scales=scales, biases=biases[0] if biases else None)
