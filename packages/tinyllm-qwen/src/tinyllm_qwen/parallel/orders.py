"""What the leader tells the others to do: a line of JSON each."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import cast, get_args

import mlx.core as mx
from tinyllm_ops import PagedTokens


@dataclass(frozen=True, slots=True)
class MakeCache:
    """Make empty caches.

    Attributes:
        cache: the number that they go by from now on.
        kv_bits: as in `Qwen.make_cache`.
        max_size: as in `Qwen.make_cache`.
    """

    cache: int
    kv_bits: int | None
    max_size: int | None


@dataclass(frozen=True, slots=True)
class DropCache:
    """Forget caches, or pages.

    Attributes:
        cache: their number.
    """

    cache: int


@dataclass(frozen=True, slots=True)
class Pass:
    """Pass tokens through all blocks.

    Attributes:
        cache: the number of the caches that take them in.
        offset: tokens that these are to hold before; what they hold beyond is to be forgotten.
        tokens: ids, row by row.
    """

    cache: int
    offset: int
    tokens: list[list[int]]


@dataclass(frozen=True, slots=True)
class CountPages:
    """Say how many pages there is room for.

    Attributes:
        memory_bytes: as in `Qwen.pages_within`.
        page_size: as in `Qwen.pages_within`.
        kv_bits: as in `Qwen.pages_within`.
    """

    memory_bytes: int
    page_size: int
    kv_bits: int | None


@dataclass(frozen=True, slots=True)
class MakePages:
    """Make empty pages for many sequences.

    Attributes:
        cache: the number that they go by from now on.
        count: as in `Qwen.make_pages`.
        page_size: as in `Qwen.make_pages`.
        kv_bits: as in `Qwen.make_pages`.
    """

    cache: int
    count: int
    page_size: int
    kv_bits: int | None


@dataclass(frozen=True, slots=True)
class CopyPages:
    """Copy whole pages.

    Attributes:
        cache: the number of the pages.
        pairs: from which, and to which.
    """

    cache: int
    pairs: list[list[int]]


@dataclass(frozen=True, slots=True)
class PagedPass:
    """Pass tokens of many sequences through all blocks; see `tinyllm_ops.PagedTokens`.

    Attributes:
        cache: the number of the pages that take them in.
        tokens: ids, row by row.
        rows: of which something will be asked, or None for all.
        block_table: the pages of each sequence, filled up to the same length.
        query_starts: where the tokens of each sequence begin, and where the last ones end.
        context_lengths: keys of each sequence.
        positions: where in its text each token stands.
        slots: where its key and value go.
    """

    cache: int
    tokens: list[list[int]]
    rows: list[int] | None
    block_table: list[list[int]]
    query_starts: list[int]
    context_lengths: list[int]
    positions: list[int]
    slots: list[int]

    @classmethod
    def of(
        cls, cache: int, tokens: mx.array, rows: Sequence[int] | None, where: PagedTokens
    ) -> "PagedPass":
        """A pass of tokens that stand there."""
        return cls(
            cache=cache,
            tokens=cast(list[list[int]], tokens.tolist()),
            rows=None if rows is None else list(rows),
            block_table=cast(list[list[int]], where.block_table.tolist()),
            query_starts=_numbers(where.query_starts),
            context_lengths=_numbers(where.context_lengths),
            positions=_numbers(where.positions),
            slots=_numbers(where.slots),
        )

    @property
    def where(self) -> PagedTokens:
        """Where the tokens stand."""
        return PagedTokens(
            mx.array(self.block_table, dtype=mx.int32),
            mx.array(self.query_starts, dtype=mx.int32),
            mx.array(self.context_lengths, dtype=mx.int32),
            mx.array(self.positions, dtype=mx.int32),
            mx.array(self.slots, dtype=mx.int32),
        )


@dataclass(frozen=True, slots=True)
class Score:
    """Gather the scores after the last pass.

    Attributes:
        last_only: after its last token alone.
    """

    last_only: bool


@dataclass(frozen=True, slots=True)
class FindBest:
    """Exchange the best tokens after the last token of the last pass.

    Attributes:
        k: how many of each rank.
    """

    k: int


Order = (
    MakeCache | CountPages | MakePages | DropCache | CopyPages | Pass | PagedPass | Score | FindBest
)
_KINDS: dict[str, type[Order]] = {kind.__name__: kind for kind in get_args(Order)}


def encoded(order: Order) -> bytes:
    """One line."""
    # Not `asdict`, which copies every number of a block table: ten times what JSON takes.
    content = {field.name: getattr(order, field.name) for field in fields(order)}
    return json.dumps({"order": type(order).__name__, **content}).encode() + b"\n"


def decoded(line: bytes) -> Order:
    """What a line says.

    Raises:
        ValueError: if it says nothing that is known here.
    """
    content = json.loads(line)
    kind = _KINDS.get(content.pop("order", None)) if isinstance(content, dict) else None
    if kind is None or content.keys() != {field.name for field in fields(kind)}:
        raise ValueError(
            f"order: expected one of {', '.join(_KINDS)} with its fields, got {line[:80]!r}: "
            "do all ranks run the same version?"
        )
    return kind(**content)


def _numbers(array: mx.array) -> list[int]:
    return cast(list[int], array.tolist())
