"""How positions turn queries and keys."""

from __future__ import annotations

from dataclasses import dataclass

from tinyllm_ops.rotary_frequencies import Yarn


@dataclass(frozen=True)
class Rotary:
    """The settings of RoPE; see `tinyllm_ops.rope`.

    Attributes:
        base: theta, from which the frequencies descend.
        traditional: whether neighbors are paired, and not the two halves of a head.
        scaling: what stretches a context, or None.
    """

    base: float = 10000.0
    traditional: bool = False
    scaling: Yarn | None = None
