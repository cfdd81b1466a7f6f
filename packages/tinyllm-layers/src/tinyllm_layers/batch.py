"""The tokens of one forward pass: their phase and their positions."""

from dataclasses import dataclass

from tinyllm_ops import PageTable, Phase, Positions, StateTable


@dataclass(frozen=True, eq=False)
class Batch:
    """The layout of a pass over `rows` x `length` tokens, made once and passed to every layer.

    With caches that are not paged, a row is a sequence, and its tokens follow the tokens in the
    cache. With paged caches, `page_table` assigns the T tokens of the pass to sequences. In the
    prefill phase all tokens then form one row, `1 T`. In the decode phase each token is a row,
    `T 1`.

    Attributes:
        phase: "prefill" or "decode". The phase selects the kernels. The result of a token has the
            same bits in every pass of one phase, alone or with other sequences.
        rows: the number of rows, B.
        length: the number of tokens per row, L.
        positions: the positions of the tokens in their sequences, for RoPE.
        page_table: the sequences and their pages; None for caches that are not paged.
        state_table: the sequences and their slots in a `RecurrentPool`; None for other caches. The
            tokens are those of the pass in order, row after row.
    """

    phase: Phase
    rows: int
    length: int
    positions: Positions
    page_table: PageTable | None = None
    state_table: StateTable | None = None

    @classmethod
    def at(cls, offset: int, rows: int, length: int, phase: Phase | None = None) -> "Batch":
        """Make the batch of a pass in which each row has `offset` earlier tokens.

        Args:
            offset: the position of the first token of every row.
            rows: the number of rows, B.
            length: the number of tokens per row, L.
            phase: unless given, "decode" for one token per row and "prefill" for more.

        Raises:
            ValueError: if the offset is negative.
        """
        if offset < 0:
            raise ValueError(f"offset: expected a number from 0 on, got {offset}")
        return cls(
            phase=phase or ("decode" if length == 1 else "prefill"),
            rows=rows,
            length=length,
            positions=slice(offset, offset + length),
        )

    def check_follows(self, offset: int) -> None:
        """Raise ValueError if the tokens do not follow the `offset` earlier tokens of a cache.

        The first tokens of a cache may have any positions.
        """
        if offset and isinstance(self.positions, slice) and self.positions.start != offset:
            raise ValueError(
                f"batch: expected tokens from position {offset} on, because the cache has "
                f"{offset} tokens, got them from position {self.positions.start} on"
            )

    @classmethod
    def paged(
        cls, page_table: PageTable, phase: Phase, state_table: StateTable | None = None
    ) -> "Batch":
        """Make the batch of a pass over the tokens of a page table, all in one phase.

        Args:
            page_table: the sequences and their pages.
            phase: "prefill" or "decode".
            state_table: for a model with recurrent layers, the slots of the same tokens. Draft
                tokens of one text are rows of their own in `page_table`, and one sequence in
                `state_table`.

        Raises:
            ValueError: if the tables have different numbers of tokens.
        """
        if state_table is not None and state_table.count != page_table.count:
            raise ValueError(
                f"state_table: expected {page_table.count} tokens, as the page table has, "
                f"got {state_table.count}"
            )
        rows, length = (1, page_table.count) if phase == "prefill" else (page_table.count, 1)
        return cls(
            phase=phase,
            rows=rows,
            length=length,
            positions=page_table.arrays.positions.reshape(rows, length),
            page_table=page_table,
            state_table=state_table,
        )
