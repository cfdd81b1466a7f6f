"""Communication between the processes that share one model."""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float, Shaped


class Communicator:
    """The processes that share a layer. This process has number `rank` of `size`.

    This class is the identity, for a model in one process. Layers call it unconditionally.
    """

    rank: int = 0
    size: int = 1

    def all_reduce(self, part: Shaped[mx.array, "*shape"]) -> Shaped[mx.array, "*shape"]:
        """Sum an array over all processes."""
        return part

    def all_gather(self, part: Shaped[mx.array, "*shape"]) -> Shaped[mx.array, "ranks *shape"]:
        """Stack the arrays of all processes, which have one shape, by rank."""
        return part[None]

    def all_gather_last(
        self, part: Shaped[mx.array, "*batch own"], total: int
    ) -> Shaped[mx.array, "*batch total"]:
        """Join the arrays of all processes along the last axis, `total` numbers in all.

        All parts are as long as the first, but the last may be shorter.
        """
        return part

    def recv(self, h: Float[mx.array, "*shape"]) -> Float[mx.array, "*shape"]:
        """Receive the input of this process's first layer from the process before it.

        Args:
            h: the embedded tokens. They are the input on the first process, and give the shape
                and dtype of the input on any other.
        """
        return h

    def send(self, h: Float[mx.array, "*shape"]) -> Float[mx.array, "*shape"]:
        """Send on the output of this process's last layer; return the last process's output."""
        return h


class RankCommunicator(Communicator):
    """Processes of an MLX group (Shoeybi et al. 2019, tensor parallelism; Huang et al. 2019).

    Communication is part of MLX's lazy graph. All processes have to evaluate the same operations
    in the same order, or they wait for each other forever.

    Attributes:
        rank: the number of this process, from 0 on.
        size: the number of processes.
    """

    def __init__(self, group: mx.distributed.Group) -> None:
        """Use a group of `mx.distributed.init`."""
        self._group = group
        self.rank = group.rank()
        self.size = group.size()

    def all_reduce(self, part: Shaped[mx.array, "*shape"]) -> Shaped[mx.array, "*shape"]:
        """Sum an array over all processes."""
        return mx.distributed.all_sum(part, group=self._group)

    def all_gather(self, part: Shaped[mx.array, "*shape"]) -> Shaped[mx.array, "ranks *shape"]:
        """Stack the arrays of all processes, which have one shape, by rank."""
        return mx.distributed.all_gather(part[None], group=self._group)

    def all_gather_last(
        self, part: Shaped[mx.array, "*batch own"], total: int
    ) -> Shaped[mx.array, "*batch total"]:
        """Join the arrays of all processes along the last axis, `total` numbers in all."""
        missing = -(-total // self.size) - part.shape[-1]
        padded = mx.pad(part, [(0, 0)] * (part.ndim - 1) + [(0, missing)]) if missing else part
        return mx.moveaxis(self.all_gather(padded), 0, -2).flatten(-2)[..., :total]

    def recv(self, h: Float[mx.array, "*shape"]) -> Float[mx.array, "*shape"]:
        """Receive the input of this process's first layer from the process before it."""
        if self.rank == 0:
            return h
        # Nothing here depends on the received array: the all-reduce in h has to come first.
        mx.async_eval(h)
        return mx.distributed.recv_like(h, self.rank - 1, group=self._group)

    def send(self, h: Float[mx.array, "*shape"]) -> Float[mx.array, "*shape"]:
        """Send on the output of this process's last layer; return the last process's output.

        The output is computed at once, because the next process waits for it even if this
        process does not need it.
        """
        if self.rank < self.size - 1:
            sent = mx.distributed.send(h, self.rank + 1, group=self._group)
            (h,) = mx.depends([mx.zeros_like(h)], [sent])
        last = self.all_reduce(h)
        mx.async_eval(last)
        return last


SINGLE = Communicator()
"""The communicator of a model in one process."""
