"""What the leader tells the others to do: a line of JSON each."""

import json
from dataclasses import asdict, dataclass, fields


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
    """Forget caches.

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


Order = MakeCache | DropCache | Pass | Score | FindBest
_KINDS: dict[str, type[Order]] = {
    kind.__name__: kind for kind in (MakeCache, DropCache, Pass, Score, FindBest)
}


def encoded(order: Order) -> bytes:
    """One line."""
    return json.dumps({"order": type(order).__name__, **asdict(order)}).encode() + b"\n"


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
