"""The tokens of one forward pass: their phase and their positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinyllm_ops import PageTable, Phase, Positions


@dataclass(frozen=True, eq=False)
class Batch:
    """The layout of a pass over `rows` x `length` tokens, made once and passed to every layer.

    With a cache for each row, a row is a sequence and its tokens follow the tokens in the cache.
    With pages, `pages` says which tokens belong to which sequence: in the prefill phase all tokens
    are one row, `1 T`; in the decode phase each token is a row, `T 1`.

    Attributes:
        phase: "prefill" or "decode". It chooses the kernels: a token has the same bits in every
            pass of one phase, alone or in a batch.
        rows: B.
        length: tokens a row, L.
        positions: the positions of the tokens in their sequences, for RoPE.
        pages: the sequences and their pages; None where each row has a cache of its own.
    """

    phase: Phase
    rows: int
    length: int
    positions: Positions
    pages: PageTable | None = None

    @classmethod
    def at(
        cls, offset: int | Sequence[int], rows: int, length: int, phase: Phase | None = None
    ) -> Batch:
        """Describe tokens that follow `offset` earlier ones.

        Args:
            offset: the position of the first token of all rows, or one number a row.
            rows: B.
            length: tokens a row, L.
            phase: unless given, one token a row is a decode step, more are a prompt.

        Raises:
            ValueError: if an offset is negative, or there are not as many offsets as rows.
        """
        offsets = [offset] if isinstance(offset, int) else list(offset)
        if min(offsets, default=0) < 0:
            raise ValueError(f"offset: expected numbers from 0 on, got {offset}")
        if not isinstance(offset, int) and len(offsets) != rows:
            raise ValueError(f"offset: expected {rows} numbers, one a row, got {len(offsets)}")
        slices = [slice(start, start + length) for start in offsets]
        return cls(
            phase=phase or ("decode" if length == 1 else "prefill"),
            rows=rows,
            length=length,
            positions=slices[0] if isinstance(offset, int) else slices,
        )

    @classmethod
    def paged(cls, pages: PageTable, phase: Phase) -> Batch:
        """Describe the tokens of many sequences whose keys and values are in pages."""
        rows, length = (1, pages.count) if phase == "prefill" else (pages.count, 1)
        return cls(
            phase=phase,
            rows=rows,
            length=length,
            positions=pages.arrays.positions.reshape(rows, length),
            pages=pages,
        )
