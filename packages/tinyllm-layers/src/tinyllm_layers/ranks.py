"""The processes that share one model."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float, Shaped


class Ranks:
    """Processes that each hold a part of every layer (Shoeybi et al. 2019, tensor parallelism).

    Or some of the layers: then what leaves one's last block goes to the next one.

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

    def taken_over(self, h: Float[mx.array, "*shape"]) -> Float[mx.array, "*shape"]:
        """Get what has left the blocks of the process before this one, which has others.

        Args:
            h: what enters the first block, and is all that the first process needs.
        """
        if self.rank == 0:
            return h
        # What is received depends on nothing that is here: the sum in h has to have its turn first.
        mx.async_eval(h)
        return mx.distributed.recv_like(h, self.rank - 1, group=self._group)

    def handed_on(self, h: Float[mx.array, "*shape"]) -> Float[mx.array, "*shape"]:
        """Give what has left this process's blocks to the next one, and get what left the last.

        It is computed at once: the next one waits for it, whatever becomes of it here.

        Args:
            h: what left the last block that is here.
        """
        if self.rank < self.size - 1:
            sent = mx.distributed.send(h, self.rank + 1, group=self._group)
            (h,) = mx.depends([mx.zeros_like(h)], [sent])
        last = self.sum(h)
        mx.async_eval(last)
        return last

    def stack(self, part: Shaped[mx.array, "*shape"]) -> Shaped[mx.array, "ranks *shape"]:
        """Put what each process has behind one another, by rank; all have as much."""
        return mx.distributed.all_gather(part[None], group=self._group)
