"""Loans of the caches of a native stack, so that a token costs no objects for each layer.

Between two tokens, only the stack needs the arrays of the caches. As inputs and outputs of each
pass they would be new objects of Python and MLX for every layer and token.
"""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Float
from tinyllm_layers import Batch, LayerCache, PagedCache
from tinyllm_layers.cache.dense import GrowingCache
from tinyllm_ops import Weight

from tinyllm_kernels import _cpu as native
from tinyllm_kernels.cpu.layers.cache_formats import DENSE
from tinyllm_kernels.cpu.layers.layer_groups import (
    LayerGroup,
    check_page_table,
    first_position,
    has_page_table,
    native_page_table,
    page_arrays,
    pages_of_arrays,
    reserve_arrays,
    sequence_table,
)


class StackLoan(ABC):
    """A `Loan` of the caches of a group of layers, which are all layers of a stack."""

    def __init__(
        self, x: Float[mx.array, "B L E"], group: LayerGroup, arrays: list[mx.array]
    ) -> None:
        """Borrow the arrays of the caches of `group`, equally many of each."""
        self._native = native.Loan(group.handle, arrays)
        self._group = weakref.ref(group)  # a cache keeps no weights alive
        self._width, self._dtype = x.shape[-1], x.dtype
        self._count = len(group.handles)
        self._has_ended = False
        self._returned: dict[int, list[mx.array]] | None = None

    def serves(
        self,
        x: Float[mx.array, "B L E"],
        batch: Batch,
        group: LayerGroup,
        caches: Sequence[LayerCache],
    ) -> bool:
        """Return True if the next pass can be one of `group` with these caches in this order."""
        are_lent = all(cache.lent == (self, index) for index, cache in enumerate(caches))
        is_open = not self._has_ended and self._group() is group
        return are_lent and is_open and self.accepts(x, batch)

    @abstractmethod
    def accepts(self, x: Float[mx.array, "B L E"], batch: Batch) -> bool:
        """Return True if the arrays have room for the tokens of the batch, in the dtype of x."""

    @abstractmethod
    def run(
        self, x: Float[mx.array, "B L E"], batch: Batch, group: LayerGroup
    ) -> Float[mx.array, "B L E"]:
        """Compute the next pass of the group."""

    @abstractmethod
    def take(self, index: int) -> object:
        """See `tinyllm_layers.cache.loan.Loan`."""

    def release(self, index: int) -> None:
        """See `tinyllm_layers.cache.loan.Loan`."""
        assert self._returned is not None  # `take` comes first
        self._returned.pop(index, None)

    def _taken(self, index: int, *, drops_last: bool = False) -> list[mx.array]:
        """Return the arrays of a cache. The first call ends the loan.

        Args:
            index: the index of the cache.
            drops_last: True if no cache needs the tokens of the latest pass.
        """
        if self._returned is None:
            self._has_ended = True
            arrays = self._native.end(drops_last)  # after Ctrl-C a second call returns the same
            size = len(arrays) // self._count
            self._returned = {i: arrays[i * size : (i + 1) * size] for i in range(self._count)}
            del self._native  # which holds the arrays, too
        return self._returned[index]


class SequenceLoan(StackLoan):
    """A loan of caches of whole sequences with equal offsets, dense or quantized."""

    def __init__(
        self,
        x: Float[mx.array, "B L E"],
        batch: Batch,
        group: LayerGroup,
        caches: Sequence[GrowingCache],
        cache_format: tuple[int, int],
    ) -> None:
        """Borrow the arrays of caches, with capacity for the tokens of the batch.

        Raises:
            ValueError: if the tokens do not fit the stored ones.
        """
        arrays = reserve_arrays(x, batch, group, caches, cache_format)
        super().__init__(x, group, arrays)
        self._format = cache_format
        self._length = caches[0].offset  # the tokens in each cache that was not trimmed
        self._trimmed: dict[int, int] = {}  # the tokens in the other caches, by their index
        self._last = self._length  # the first token of the latest pass
        self._rows, self._capacity = batch.rows, min(array.shape[-2] for array in arrays)

    def accepts(self, x: Float[mx.array, "B L E"], batch: Batch) -> bool:
        """See `StackLoan`."""
        return (
            not self._trimmed
            and first_position(batch) == self._length
            and self._length + batch.length <= self._capacity
            and (batch.rows, x.shape[-1], x.dtype) == (self._rows, self._width, self._dtype)
        )

    def run(
        self, x: Float[mx.array, "B L E"], batch: Batch, group: LayerGroup
    ) -> Float[mx.array, "B L E"]:
        """See `StackLoan`."""
        length, phase = self._length, batch.phase
        if self._format == DENSE:
            y = self._native.layers(x, group.handle, length, phase)
        else:
            table, is_empty = sequence_table(batch, length, self._capacity), length == 0
            y = self._native.paged_layers(
                x, group.handle, self._format, table, 0, phase, without_tokens=is_empty
            )
        self._last, self._length = length, length + batch.length
        return y

    def offset(self, index: int) -> int:
        """See `TokenLoan`."""
        return self._trimmed.get(index, self._length)

    def trim(self, index: int, length: int) -> None:
        """See `TokenLoan`."""
        self._trimmed[index] = length

    def take(self, index: int) -> list[mx.array]:
        """See `Loan`."""
        needed = max(self.offset(other) for other in range(self._count))
        return self._taken(index, drops_last=needed <= self._last)


class PagedLoan(StackLoan):
    """A loan of paged caches with one format and one window."""

    def __init__(
        self,
        x: Float[mx.array, "B L E"],
        batch: Batch,
        group: LayerGroup,
        caches: Sequence[PagedCache],
        cache_format: tuple[int, int],
    ) -> None:
        """Borrow the pages of caches.

        Raises:
            ValueError: if the pages do not fit the page table of the batch.
        """
        check_page_table(batch, caches)
        super().__init__(x, group, page_arrays(caches))
        self._size = caches[0].num_pages, caches[0].page_size
        self._window, self._format = caches[0].window or 0, cache_format

    def accepts(self, x: Float[mx.array, "B L E"], batch: Batch) -> bool:
        """See `StackLoan`."""
        table = batch.page_table
        return (
            table is not None
            and has_page_table(batch)
            and (table.num_pages, table.page_size) == self._size
            and (x.shape[-1], x.dtype) == (self._width, self._dtype)
        )

    def run(
        self, x: Float[mx.array, "B L E"], batch: Batch, group: LayerGroup
    ) -> Float[mx.array, "B L E"]:
        """See `StackLoan`."""
        table = native_page_table(batch)
        return self._native.paged_layers(
            x, group.handle, self._format, table, self._window, batch.phase
        )

    def take(self, index: int) -> tuple[Weight, Weight]:
        """See `Loan`."""
        keys, values = pages_of_arrays(self._taken(index), self._format)
        return keys, values


def lend_sequences(
    x: Float[mx.array, "B L E"],
    batch: Batch,
    group: LayerGroup,
    caches: Sequence[GrowingCache],
    cache_format: tuple[int, int],
) -> Float[mx.array, "B L E"]:
    """Compute the first pass of a loan of caches of whole sequences.

    Args:
        x: the input of the first layer.
        batch: the layout of the pass.
        group: the layers, which have attention.
        caches: one cache per layer, with equal offsets.
        cache_format: see `cache_formats.sequence_format`.

    Raises:
        ValueError: if the tokens do not fit the stored ones. The caches keep their arrays.
    """
    loan = SequenceLoan(x, batch, group, caches, cache_format)
    y = loan.run(x, batch, group)
    for index, cache in enumerate(caches):
        cache.lend(loan, index)
    return y


def lend_pages(
    x: Float[mx.array, "B L E"],
    batch: Batch,
    group: LayerGroup,
    caches: Sequence[PagedCache],
    cache_format: tuple[int, int],
) -> Float[mx.array, "B L E"]:
    """Compute the first pass of a loan of paged caches.

    Args:
        x: the input of the first layer.
        batch: the layout of the pass, with a page table.
        group: the layers, which have attention.
        caches: one cache per layer, with equal windows.
        cache_format: see `cache_formats.page_format`.

    Raises:
        ValueError: if the pages do not fit the page table or the layers. The caches keep their
            pages.
    """
    loan = PagedLoan(x, batch, group, caches, cache_format)
    y = loan.run(x, batch, group)
    for index, cache in enumerate(caches):
        cache.lend(loan, index)
    return y
