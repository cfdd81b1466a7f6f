"""The two phases of generation. Kernels may sum in a different order in each phase."""

from typing import Literal

import mlx.core as mx
from jaxtyping import Shaped

Phase = Literal["prefill", "decode"]
"""The prefill phase reads many tokens of a prompt at once. The decode phase computes every token as
a pass of that token alone would: generated tokens, and draft tokens to verify. Tokens of one
sequence may be several rows, or one row."""


def phase_of(x: Shaped[mx.array, "..."], few: int) -> Phase:
    """Infer the phase from the shape of x, for callers that do not state it.

    Rows of shape `... 1 I` are decode steps of independent sequences. Rows of shape `... L I` are
    tokens of a prompt. A matrix `N I` counts as decode steps if it has at most `few` rows.

    Args:
        x: the input of a projection, with at least one axis.
        few: the largest number of rows of a matrix that counts as decode steps.
    """
    if x.ndim > 2:
        return "decode" if x.shape[-2] == 1 else "prefill"
    return "decode" if x.ndim < 2 or x.shape[0] <= few else "prefill"
