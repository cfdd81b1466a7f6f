"""Addend of a product, added before rounding: a bias, a residual, their sum, or nothing."""

from dataclasses import dataclass

import mlx.core as mx
from jaxtyping import Float


@dataclass(frozen=True)
class AddendFormat:
    """Parts of a kernel's text that depend on the kind of addend.

    Attributes:
        suffix: suffix of the kernel's name.
        inputs: names of the additional inputs.
        declaration: statement that declares `addend`, for the tokens from `first_token` on.
    """

    suffix: str
    inputs: tuple[str, ...]
    declaration: str


NO_ADDEND = AddendFormat("", (), "const NoAddend addend;")
ARRAY = AddendFormat(
    "_add",
    ("addend_values", "addend_stride"),
    "const auto addend = addend_from(addend_values, uint(addend_stride), first_token);",
)


@dataclass(frozen=True)
class Addend:
    """Addend of one call.

    Attributes:
        format: selects the kernel.
        inputs: values of the additional inputs.
    """

    format: AddendFormat = NO_ADDEND
    inputs: tuple[mx.array | int, ...] = ()

    @classmethod
    def of(
        cls,
        bias: Float[mx.array, "O"] | None,
        residual: Float[mx.array, "*batch O"] | None,
    ) -> "Addend":
        """Make the addend of a bias and a residual.

        A bias has a stride of 0, so that all tokens read the same row.
        """
        if residual is None:
            return cls() if bias is None else cls(ARRAY, (bias, 0))
        rows = residual if bias is None else residual + bias
        outputs = residual.shape[-1]
        return cls(ARRAY, (rows.reshape(-1, outputs), outputs))
