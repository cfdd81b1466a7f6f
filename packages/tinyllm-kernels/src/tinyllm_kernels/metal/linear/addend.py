"""The numbers that a product kernel adds before it rounds: a bias, a residual, or their sum."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
from jaxtyping import Float


@dataclass(frozen=True)
class AddendFormat:
    """The text that a kernel needs for one kind of addend.

    Attributes:
        name: suffix of the kernel's name.
        inputs: names of the additional inputs.
        body: declares the variable `added`. It refers to rows from `first_token` on.
    """

    name: str
    inputs: tuple[str, ...]
    body: str


NO_ADDEND = AddendFormat("", (), "const NoAddend added;")
ARRAY = AddendFormat(
    "_add",
    ("addend", "addend_stride"),
    "const auto added = addend_from(addend, uint(addend_stride), first_token);",
)


@dataclass(frozen=True)
class Addend:
    """The addend of one call.

    Attributes:
        format: chooses the kernel.
        inputs: values of the additional inputs.
    """

    format: AddendFormat = NO_ADDEND
    inputs: tuple[mx.array | int, ...] = ()

    @classmethod
    def of(
        cls,
        bias: Float[mx.array, "O"] | None,
        residual: Float[mx.array, "*batch O"] | None,
    ) -> Addend:
        """Make the addend of a projection. A bias has a stride of 0: all tokens share its row."""
        if residual is None:
            return cls() if bias is None else cls(ARRAY, (bias, 0))
        rows = residual if bias is None else residual + bias
        outputs = residual.shape[-1]
        return cls(ARRAY, (rows.reshape(-1, outputs), outputs))
