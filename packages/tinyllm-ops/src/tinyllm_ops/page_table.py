"""Page tables, which assign pages of keys and values to the sequences of a forward pass."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import mlx.core as mx
from jaxtyping import Int32


@dataclass(frozen=True, eq=False)
class PageTable:
    """T tokens of R sequences: the keys that each token reads and the slot that it writes.

    The names are taken from vLLM's attention metadata. Tokens `cu_seqlens_q[r]` to
    `cu_seqlens_q[r + 1]` of the T tokens are the queries of sequence r. They are the last of the
    `seq_lens[r]` tokens of the sequence, whose keys lie in the pages `block_tables[r]`. All keys of
    a pass are written before any key is read. Consecutive tokens of one text may therefore also be
    listed as sequences of one query each, with the same pages.

    The constructor checks all numbers on the host and stores them as tuples. Ops rely on that
    check and do not repeat it: a valid table cannot make an op read or write outside of the pages.

    Attributes:
        block_tables: pages of each sequence, in the order of the tokens. Pages beyond `seq_lens`
            are allocated but not read.
        cu_seqlens_q: index of the first query of each sequence, and then T: R + 1 ascending
            numbers.
        seq_lens: number of keys of each sequence, the keys of this pass included.
        slot_mapping: page * page_size + offset within the page for the key and value of each
            token.
        num_pages: number of pages of the cache.
        page_size: tokens per page.

    Raises:
        ValueError: if a page or slot does not exist, two tokens have one slot, a sequence has more
            keys than its pages hold, or the lengths of the arguments do not fit.
    """

    block_tables: Sequence[Sequence[int]]
    cu_seqlens_q: Sequence[int]
    seq_lens: Sequence[int]
    slot_mapping: Sequence[int]
    num_pages: int
    page_size: int

    def __post_init__(self) -> None:
        """Copy the numbers, so that no caller can change them later, and check the copies."""
        copies = {
            "block_tables": tuple(map(tuple, self.block_tables)),
            "cu_seqlens_q": tuple(self.cu_seqlens_q),
            "seq_lens": tuple(self.seq_lens),
            "slot_mapping": tuple(self.slot_mapping),
        }
        for name, numbers in copies.items():
            object.__setattr__(self, name, numbers)
        if self.page_size < 1 or self.num_pages < 0:
            raise ValueError(
                "page_size, num_pages: expected at least 1 and 0, got "
                f"{self.page_size}, {self.num_pages}"
            )
        self._check_sequences()
        self._check_slots()

    def _check_sequences(self) -> None:
        starts, size = self.cu_seqlens_q, self.page_size
        if len(starts) != len(self.seq_lens) + 1 or len(self.block_tables) != len(self.seq_lens):
            raise ValueError(
                f"block_tables, cu_seqlens_q: expected {len(self.seq_lens)} and "
                f"{len(self.seq_lens) + 1} entries for {len(self.seq_lens)} seq_lens, "
                f"got {len(self.block_tables)} and {len(starts)}"
            )
        if starts[0] != 0 or starts[-1] != self.count:
            raise ValueError(
                f"cu_seqlens_q: expected numbers from 0 to {self.count}, the tokens of "
                f"slot_mapping, got {list(starts)}"
            )
        for row, (pages, length) in enumerate(zip(self.block_tables, self.seq_lens, strict=True)):
            queries = starts[row + 1] - starts[row]
            if not 0 <= queries <= length:
                raise ValueError(
                    f"cu_seqlens_q: expected 0 to {length} queries of sequence {row}, got {queries}"
                )
            used = pages[: self._page_count(length)]
            if len(used) * size < length:
                raise ValueError(
                    f"block_tables: expected pages for {length} tokens in row {row}, "
                    f"got {len(pages)} pages of {size}"
                )
            if used and not 0 <= min(used) <= max(used) < self.num_pages:
                raise ValueError(
                    f"block_tables: expected pages from 0 to {self.num_pages - 1}, "
                    f"got {list(used)} in row {row}"
                )

    def _check_slots(self) -> None:
        slots, end = self.slot_mapping, self.num_pages * self.page_size
        if slots and not 0 <= min(slots) <= max(slots) < end:
            raise ValueError(
                f"slot_mapping: expected slots from 0 to {end - 1}, "
                f"got {min(slots)} to {max(slots)}"
            )
        if len(set(slots)) < len(slots):
            twice, _ = Counter(slots).most_common(1)[0]
            raise ValueError(f"slot_mapping: expected each slot once, got {twice} twice")

    @classmethod
    def of(
        cls, chunks: Sequence[tuple[Sequence[int], int, int]], *, num_pages: int, page_size: int
    ) -> "PageTable":
        """Make the table of a pass over one chunk of each sequence.

        Args:
            chunks: for each sequence its pages, `start` and `stop`. The pass computes tokens
                `start` to `stop`. The keys of the tokens before `start` are already in the pages.
                A sequence may be listed as several chunks: each draft token is one chunk, for
                example.
            num_pages: number of pages of the cache.
            page_size: tokens per page.

        Raises:
            ValueError: if a chunk does not fit into its pages, or as in the constructor.
        """
        for pages, start, stop in chunks:
            if not 0 <= start <= stop <= len(pages) * page_size:
                raise ValueError(
                    f"chunks: expected 0 <= start <= stop <= {len(pages) * page_size}, the "
                    f"capacity of {len(pages)} pages of {page_size}, got {start} to {stop}"
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
        """The number of tokens of the pass, T."""
        return len(self.slot_mapping)

    @cached_property
    def positions(self) -> Sequence[int]:
        """The position of each token in its sequence."""
        chunks = zip(self.seq_lens, pairwise(self.cu_seqlens_q), strict=True)
        return tuple(
            position
            for length, (first, end) in chunks
            for position in range(length - (end - first), length)
        )

    @cached_property
    def arrays(self) -> "PageArrays":
        """The numbers of the table as arrays on the device, made at the first access."""
        used = [
            pages[: self._page_count(length)]
            for pages, length in zip(self.block_tables, self.seq_lens, strict=True)
        ]
        width = max(map(len, used), default=0)
        rows = [[*pages, *[0] * (width - len(pages))] for pages in used]
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

    def _page_count(self, length: int) -> int:
        """Return the number of pages that `length` tokens need, a partly filled page included."""
        return -(-length // self.page_size)


@dataclass(frozen=True, eq=False)
class PageArrays:
    """The numbers of a `PageTable` as arrays.

    Row r of `block_tables` lists the pages that hold keys of sequence r, padded with page 0.
    """

    block_tables: Int32[mx.array, "R blocks"]
    cu_seqlens_q: Int32[mx.array, "R+1"]
    seq_lens: Int32[mx.array, "R"]
    positions: Int32[mx.array, "T"]
    slot_mapping: Int32[mx.array, "T"]
