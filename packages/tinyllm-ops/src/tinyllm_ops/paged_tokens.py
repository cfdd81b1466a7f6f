"""Tokens of many requests on one axis, and where in the pages they belong."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
from jaxtyping import Int32

from tinyllm_ops.contract import require_dtype, require_rank, require_shape


@dataclass(frozen=True, eq=False)
class PagedTokens:
    """T tokens of R requests, as `OpSet.paged_attention_block` computes them.

    The first three say who reads which keys, see `tinyllm_ops.paged_attention`; the next two say
    what each token leaves behind. Tokens of one text may stand side by side as requests of one
    query each that share their pages: all keys are written before any is read.

    Attributes:
        block_table: the pages of each request in order.
        query_starts: where the tokens of each request begin, and where those of the last one end.
        context_lengths: keys of each request, its new ones included.
        positions: where in its text each token stands, for RoPE.
        slots: page * page_size + place in the page to which the key and value of each token go; -1
            is nowhere. No two tokens have the same place.
        window: how many keys a query sees at most, or None.

    Raises:
        ValueError: if shapes do not fit, or a dtype is not int32.
    """

    block_table: Int32[mx.array, "R blocks"]
    query_starts: Int32[mx.array, "R+1"]
    context_lengths: Int32[mx.array, "R"]
    positions: Int32[mx.array, "T"]
    slots: Int32[mx.array, "T"]
    window: int | None = None

    def __post_init__(self) -> None:
        """Refuse arrays that do not describe the same tokens."""
        require_rank("block_table", self.block_table, "R blocks")
        requests = self.block_table.shape[0]
        require_shape("query_starts", self.query_starts, (requests + 1,))
        require_shape("context_lengths", self.context_lengths, (requests,))
        require_rank("positions", self.positions, "T")
        require_shape("slots", self.slots, self.positions.shape)
        for name, x in (
            ("block_table", self.block_table),
            ("query_starts", self.query_starts),
            ("context_lengths", self.context_lengths),
            ("positions", self.positions),
            ("slots", self.slots),
        ):
            require_dtype(name, x, mx.int32)

    @property
    def count(self) -> int:
        """Tokens, T."""
        return self.positions.shape[0]
