"""A paged cache: keys and values in pages that are assigned to many sequences."""

from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import OpSet, QuantizedTensor, Weight, write_pages
from tinyllm_ops.checks import check_new_tokens
from tinyllm_ops.quantization.tensor import AFFINE, arrays_of, check_format, map_arrays

from tinyllm_layers.batch import Batch
from tinyllm_layers.cache.base import AttentionCache, Zeros
from tinyllm_layers.cache.dense import alias
from tinyllm_layers.cache.loan import Loan


class PagedCache(AttentionCache):
    """The pages of one layer (Kwon et al. 2023). A `PageTable` assigns pages to sequences.

    Attributes:
        num_pages: the number of pages, P.
        page_size: the number of tokens in a page.
        window: the number of most recent tokens that a token sees; None for all tokens.
    """

    # Without a dict, as `TokenBuffer`.
    __slots__ = ("_stored", "lent", "num_pages", "page_size", "window")

    lent: tuple[Loan[tuple[Weight, Weight]], int] | None

    def __init__(self, keys: Weight, values: Weight, window: int | None = None) -> None:
        """Make a cache of given pages: keys and values `P Hkv page D`, dense or quantized."""
        self.num_pages, self.page_size = keys.shape[0], keys.shape[2]
        self.window = window
        self._stored: tuple[Weight, Weight] | None = (keys, values)  # or None while they are lent
        self.lent = None

    @classmethod
    def empty(
        cls,
        shape: tuple[int, int, int, int],
        dtype: mx.Dtype,
        *,
        bits: int | None = None,
        group_size: int = 0,
        window: int | None = None,
        zeros: Zeros = mx.zeros,
    ) -> "PagedCache":
        """Make a cache of empty pages. Memory is allocated when the pages are evaluated.

        Args:
            shape: the shape `P Hkv page D` of the keys and of the values.
            dtype: the dtype of dense numbers, or of the scales of quantized numbers.
            bits: width of quantized numbers; None for dense numbers.
            group_size: for quantized numbers, how many consecutive numbers along D share a scale.
            window: the number of most recent tokens that a token sees; None for all tokens.
            zeros: makes the arrays.

        Raises:
            ValueError: if MLX does not know the format of `bits` and `group_size`.
        """
        if bits is not None:
            check_format(group_size, bits, AFFINE)

        def pages() -> Weight:
            if bits is None:
                return zeros(shape, dtype)
            lead, head_dim = shape[:3], shape[3]
            groups = (*lead, head_dim // group_size)
            return QuantizedTensor(
                zeros((*lead, head_dim * bits // 32), mx.uint32),
                zeros(groups, dtype),
                zeros(groups, dtype),
                group_size,
                bits,
            )

        return cls(pages(), pages(), window)

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays of all pages. See `LayerCache.arrays` for a cache that is lent."""
        return [array for pages in self._take_back() for array in arrays_of(pages)]

    @property
    def keys(self) -> Weight:
        """The pages of keys, `P Hkv page D`, dense or quantized. Lent pages are taken back."""
        return self._take_back()[0]

    @property
    def values(self) -> Weight:
        """The pages of values, `P Hkv page D`, dense or quantized. Lent pages are taken back."""
        return self._take_back()[1]

    def attend(
        self,
        q: Float[mx.array, "B H L D"],
        k: Float[mx.array, "B Hkv L D"],
        v: Float[mx.array, "B Hkv L D"],
        batch: Batch,
        scale: float,
        ops: OpSet,
    ) -> Float[mx.array, "B H L D"]:
        """Write k and v to their slots, and compute attention of each query over its sequence.

        Raises:
            ValueError: as in `AttentionCache.attend`, or if the batch has no page table.
        """
        if batch.page_table is None:
            raise ValueError("batch: expected a page table for a paged cache, got None")
        check_new_tokens(q, k, v, (batch.rows, batch.length))
        q, k, v = (x.swapaxes(1, 2).flatten(0, 1) for x in (q, k, v))  # T heads D
        keys = write_pages(self.keys, _in_format(k, self.keys, ops), batch.page_table)
        values = write_pages(self.values, _in_format(v, self.values, ops), batch.page_table)
        out = ops.paged_attention(
            q, keys, values, batch.page_table, scale, self.window, phase=batch.phase
        )
        self.commit(keys, values)
        return mx.unflatten(out, 0, (batch.rows, batch.length)).swapaxes(1, 2)

    def commit(self, keys: Weight, values: Weight) -> None:
        """Replace the pages by updated pages, to which the tokens of a pass were written."""
        self._stored, self.lent = (keys, values), None

    def lend(self, loan: Loan[tuple[Weight, Weight]], index: int) -> None:
        """Leave the pages to a stack until they are needed here.

        See `tinyllm_layers.cache.loan`.

        Args:
            loan: the loan.
            index: the index of the cache in the loan.
        """
        self.lent = loan, index  # first: if Ctrl-C comes in between, the loan has the pages
        self._stored = None

    def fork(self) -> "PagedCache":
        """Return a second cache with the same pages.

        The next write to one of the caches copies all pages.
        """
        keys, values = map_arrays(alias, self.keys), map_arrays(alias, self.values)
        return PagedCache(keys, values, self.window)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages. Every source is read before any target is written.

        Args:
            pairs: the numbers of the source page and the target page of each copy.

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
        # Finish the read first: a pending read refers to the array, and the write would then copy
        # every page.
        mx.eval(arrays_of(keys), arrays_of(values))

        def copied(pages: mx.array, new: mx.array) -> mx.array:
            pages = alias(pages)
            pages[targets] = new
            return pages

        self.commit(map_arrays(copied, self.keys, keys), map_arrays(copied, self.values, values))

    def _take_back(self) -> tuple[Weight, Weight]:
        """Return keys and values. If they are lent, end the loan: see `Loan`."""
        if self.lent is not None:
            loan, index = self.lent
            self._stored = loan.take(index)
            self.lent = None
            loan.release(index)
        assert self._stored is not None  # they are lent, or here
        return self._stored


def _in_format(rows: mx.array, stored: Weight, ops: OpSet) -> Weight:
    """Return `rows` in the format of `stored`: quantized if the pages are quantized."""
    if isinstance(stored, mx.array):
        return rows
    return ops.quantize(rows, stored.group_size, stored.bits, stored.mode)
