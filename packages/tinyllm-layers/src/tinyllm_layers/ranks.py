"""The processes that share one model."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Shaped


class Ranks:
    """Processes that each hold a part of every layer (Shoeybi et al. 2019, tensor parallelism).

    What is said between them is a part of MLX's graph, as lazy as the rest of it: all of them have
    to evaluate the same sums in the same order, or they wait for each other for ever.

    Attributes:
        rank: the number of this process, from 0 on.
        size: how many there are.
    """

    def __init__(self, group: mx.distributed.Group) -> None:
        """Take the group that `mx.distributed.init` gave."""
        self._group = group
        self.rank = group.rank()
        self.size = group.size()

    @property
    def adds_residual(self) -> bool:
        """Whether this is the one process whose part of a sum has what flows by in it."""
        return self.rank == 0

    def sum(self, part: Shaped[mx.array, "*shape"]) -> Shaped[mx.array, "*shape"]:
        """Add up what each process has of the same thing."""
        return mx.distributed.all_sum(part, group=self._group)

    def stack(self, part: Shaped[mx.array, "*shape"]) -> Shaped[mx.array, "ranks *shape"]:
        """Put what each process has behind one another, by rank; all have as much."""
        return mx.distributed.all_gather(part[None], group=self._group)
