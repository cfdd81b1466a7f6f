"""What is added to a product, as the kernels are given it."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True)
class AddendFormat:
    """What the text of a kernel says of it.

    Attributes:
        name: comes behind the kernel's.
        inputs: names of the inputs it brings.
        body: declares `added`, from `first_token` on.
    """

    name: str
    inputs: tuple[str, ...]
    body: str


NOTHING = AddendFormat("", (), "const Nothing added;")
ROWS = AddendFormat(
    "_add",
    ("addend", "addend_stride"),
    "const auto added = addend_from(addend, uint(addend_stride), first_token);",
)


@dataclass(frozen=True)
class Addend:
    """What is added to each row of a product, before it is rounded.

    Attributes:
        format: which kernel adds it.
        inputs: those of the format.
    """

    format: AddendFormat = NOTHING
    inputs: tuple[mx.array | int, ...] = ()

    @classmethod
    def of(cls, rows: mx.array | None) -> Addend:
        """One row for all tokens, `O`, or one for each, `M O`."""
        if rows is None:
            return cls()
        return cls(ROWS, (rows, rows.shape[-1] if rows.ndim > 1 else 0))
