"""Requests of all kinds, their keys scattered over pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from tinyllm_ops.paged_tokens import PagedTokens


@dataclass(frozen=True)
class PageTable:
    """What `paged_attention` wants to know of R requests.

    Attributes:
        block_table: pages of each request, in no order, and nonsense after the last one.
        query_starts: where the queries of each request begin.
        context_lengths: keys of each request.
        pages: how many pages there are, some of which are nobody's.
    """

    block_table: mx.array
    query_starts: mx.array
    context_lengths: mx.array
    pages: int

    @property
    def arrays(self) -> tuple[mx.array, mx.array, mx.array]:
        """The first three, in the order of the op."""
        return self.block_table, self.query_starts, self.context_lengths

    def tokens(self, page: int, window: int | None = None) -> PagedTokens:
        """The queries of all requests as the last tokens of their texts."""
        table, starts, lengths = (np.array(x) for x in self.arrays)
        positions = [
            np.arange(length - count, length)
            for count, length in zip(np.diff(starts), lengths, strict=True)
        ]
        slots = [
            pages[where // page] * page + where % page
            for pages, where in zip(table, positions, strict=True)
        ]
        where, to = (mx.array(np.concatenate(x).astype(np.int32)) for x in (positions, slots))
        return PagedTokens(*self.arrays, where, to, window)


def page_table(requests: Sequence[tuple[int, int]], page: int, *, seed: int) -> PageTable:
    """A table for requests of so many queries and so many keys each, in pages of `page` tokens."""
    needed = [math.ceil(keys / page) for _, keys in requests]
    pages = sum(needed) + 3
    free = iter(np.random.default_rng(seed).permutation(pages).tolist())
    table = np.full((len(requests), max(needed, default=0) + 1), -1, np.int32)
    for row, count in zip(table, needed, strict=True):
        row[:count] = [next(free) for _ in range(count)]
    starts = np.cumsum([0] + [queries for queries, _ in requests])
    return PageTable(
        mx.array(table),
        mx.array(starts.astype(np.int32)),
        mx.array(np.array([keys for _, keys in requests], np.int32)),
        pages,
    )
