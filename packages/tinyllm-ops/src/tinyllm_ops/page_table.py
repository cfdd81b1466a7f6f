"""The pages in which the keys and values of a pass lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import mlx.core as mx
from jaxtyping import Int32

NO_SLOT = -1
"""The slot of a token whose key and value are not stored."""


@dataclass(frozen=True, eq=False)
class PageTable:
    """T tokens of R sequences: the keys that each token reads and the slot that it writes.

    The names are those of vLLM's attention metadata. Sequence r has the queries
    `cu_seqlens_q[r]` to `cu_seqlens_q[r + 1]` of the T tokens: they are the last ones of the
    `seq_lens[r]` tokens whose keys lie in the pages `block_tables[r]`. All keys of a pass are
    written before any key is read, so tokens of one text may also be listed as sequences of one
    query each that share their pages.

    Everything is checked once, here, on the host: no op looks at these numbers again.

    Attributes:
        block_tables: the pages of each sequence, in the order of its tokens.
        cu_seqlens_q: where the queries of each sequence begin, and where the last ones end.
        seq_lens: keys of each sequence, those of this pass included.
        slot_mapping: page * page_size + offset in the page for the key and value of each token,
            or `NO_SLOT`.
        num_pages: pages that there are.
        page_size: tokens a page.

    Raises:
        ValueError: if a number lies outside of the pages, two tokens have one slot, a sequence has
            more keys than its pages hold, or the lengths do not fit.
    """

    block_tables: Sequence[Sequence[int]]
    cu_seqlens_q: Sequence[int]
    seq_lens: Sequence[int]
    slot_mapping: Sequence[int]
    num_pages: int
    page_size: int

    def __post_init__(self) -> None:
        """Refuse tables that would make an op read or write outside of the pages."""
        starts, size = self.cu_seqlens_q, self.page_size
        if size < 1 or self.num_pages < 0:
            raise ValueError(
                f"page_size, num_pages: expected at least 1 and 0, got {size}, {self.num_pages}"
            )
        if len(starts) != len(self.seq_lens) + 1 or len(self.block_tables) != len(self.seq_lens):
            raise ValueError(
                f"block_tables, cu_seqlens_q: expected {len(self.seq_lens)} and "
                f"{len(self.seq_lens) + 1} entries for as many seq_lens, "
                f"got {len(self.block_tables)} and {len(starts)}"
            )
        if starts[0] < 0 or starts[-1] > self.count:
            raise ValueError(f"cu_seqlens_q: expected 0 to {self.count}, got {list(starts)}")
        for row, (pages, length) in enumerate(zip(self.block_tables, self.seq_lens, strict=True)):
            queries = starts[row + 1] - starts[row]
            if not 0 <= queries <= length:
                raise ValueError(
                    f"cu_seqlens_q: expected 0 to {length} queries of sequence {row}, got {queries}"
                )
            used = pages[: -(-length // size)]
            if len(used) * size < length:
                raise ValueError(
                    f"block_tables: expected pages for {length} tokens in row {row}, "
                    f"got {len(pages)} pages of {size}"
                )
            if used and not 0 <= min(used) <= max(used) < self.num_pages:
                raise ValueError(
                    f"block_tables: expected pages below {self.num_pages}, got {list(used)} in row "
                    f"{row}"
                )
        stored = [slot for slot in self.slot_mapping if slot != NO_SLOT]
        if stored and not 0 <= min(stored) <= max(stored) < self.num_pages * size:
            raise ValueError(
                f"slot_mapping: expected slots below {self.num_pages * size} or {NO_SLOT}, "
                f"got {min(stored)} to {max(stored)}"
            )
        if len(set(stored)) < len(stored):
            raise ValueError("slot_mapping: expected each slot once, got one twice")

    @classmethod
    def of(
        cls, chunks: Sequence[tuple[Sequence[int], int, int]], *, num_pages: int, page_size: int
    ) -> PageTable:
        """Describe a pass over chunks of sequences.

        Args:
            chunks: for each sequence its pages, and `start` and `stop`: the pass computes its
                tokens `start` to `stop`, after the keys of all tokens before are in its pages. For
                decode steps list each token as a chunk of its own.
            num_pages: pages that there are.
            page_size: tokens a page.

        Raises:
            ValueError: as the constructor.
        """
        for pages, start, stop in chunks:
            if not 0 <= start <= stop <= len(pages) * page_size:
                raise ValueError(
                    f"chunks: expected 0 <= start <= stop <= {len(pages) * page_size}, what the "
                    f"pages hold, got {start} to {stop}"
                )
        return cls(
            block_tables=[pages for pages, _, _ in chunks],
            cu_seqlens_q=[0, *accumulate(stop - start for _, start, stop in chunks)],
            seq_lens=[stop for _, _, stop in chunks],
            slot_mapping=[
                pages[at // page_size] * page_size + at % page_size
                for pages, start, stop in chunks
                for at in range(start, stop)
            ],
            num_pages=num_pages,
            page_size=page_size,
        )

    @property
    def count(self) -> int:
        """Tokens of the pass, T."""
        return len(self.slot_mapping)

    @cached_property
    def positions(self) -> list[int]:
        """The position of each token in its text; 0 for tokens of no sequence."""
        positions = [0] * self.count
        for row, length in enumerate(self.seq_lens):
            first, last = self.cu_seqlens_q[row], self.cu_seqlens_q[row + 1]
            positions[first:last] = range(length - (last - first), length)
        return positions

    @cached_property
    def arrays(self) -> PageArrays:
        """The same numbers on the device, made when they are first asked for."""
        width = max(map(len, self.block_tables), default=0)
        rows = [[*pages, *[0] * (width - len(pages))] for pages in self.block_tables]
        return PageArrays(
            mx.array(rows, dtype=mx.int32) if rows else mx.zeros((0, 0), mx.int32),
            *(
                mx.array(list(numbers), dtype=mx.int32)
                for numbers in (
                    self.cu_seqlens_q,
                    self.seq_lens,
                    self.positions,
                    self.slot_mapping,
                )
            ),
        )


@dataclass(frozen=True, eq=False)
class PageArrays:
    """The numbers of a `PageTable` as arrays; block tables are filled up to one width."""

    block_tables: Int32[mx.array, "R blocks"]
    cu_seqlens_q: Int32[mx.array, "R+1"]
    seq_lens: Int32[mx.array, "R"]
    positions: Int32[mx.array, "T"]
    slot_mapping: Int32[mx.array, "T"]
