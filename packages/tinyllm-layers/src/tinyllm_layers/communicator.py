"""Communication between the processes that compute one model together."""

import mlx.core as mx
from jaxtyping import Float, Shaped


class Communicator:
    """Communication between the `size` processes that share a layer, seen by process `rank`.

    This base class is for a model in one process. Every method returns its input, and `all_gather`
    adds the axis of ranks. Layers call the methods in every pass, whatever the number of processes.
    """

    rank: int = 0
    size: int = 1

    def all_reduce(self, part: Shaped[mx.array, "*shape"]) -> Shaped[mx.array, "*shape"]:
        """Return the sum of the arrays of all processes."""
        return part

    def all_gather(self, part: Shaped[mx.array, "*shape"]) -> Shaped[mx.array, "ranks *shape"]:
        """Return the arrays of all processes, which have one shape, stacked by rank."""
        return part[None]

    def all_gather_features(
        self, part: Shaped[mx.array, "*batch local"], total: int
    ) -> Shaped[mx.array, "*batch total"]:
        """Return the arrays of all processes joined along the last axis, by rank.

        Args:
            part: the array of this process. All processes have arrays of one length along the last
                axis, except that the last process may have a shorter array.
            total: the sum of the lengths of all processes.
        """
        return part

    def recv(self, h: Float[mx.array, "*shape"]) -> Float[mx.array, "*shape"]:
        """Receive the input of the first layer of this process from the previous process.

        Args:
            h: the embedded tokens. On rank 0 they are the input itself. On any other rank only
                their shape and dtype are used.
        """
        return h

    def send(self, h: Float[mx.array, "*shape"]) -> Float[mx.array, "*shape"]:
        """Send `h`, the output of the last layer of this process, to the next process.

        Returns:
            `h`, for `broadcast_from_last_rank`. The graph of the result contains the send.
        """
        return h

    def broadcast_from_last_rank(self, h: Float[mx.array, "*shape"]) -> Float[mx.array, "*shape"]:
        """Return the array `h` of the last process, on every process."""
        return h


class RankCommunicator(Communicator):
    """Communication between the processes of an MLX group.

    Layers use it for tensor parallelism (Shoeybi et al. 2019) and pipeline parallelism (Huang et
    al. 2019). Communication is part of MLX's lazy graph. All processes must evaluate the same
    operations in the same order, or they wait for each other forever.

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
        """Return the sum of the arrays of all processes."""
        return mx.distributed.all_sum(part, group=self._group)

    def all_gather(self, part: Shaped[mx.array, "*shape"]) -> Shaped[mx.array, "ranks *shape"]:
        """Return the arrays of all processes, which have one shape, stacked by rank."""
        return mx.distributed.all_gather(part[None], group=self._group)

    def all_gather_features(
        self, part: Shaped[mx.array, "*batch local"], total: int
    ) -> Shaped[mx.array, "*batch total"]:
        """Return the arrays of all processes joined along the last axis, by rank."""
        missing = -(-total // self.size) - part.shape[-1]
        padded = mx.pad(part, [(0, 0)] * (part.ndim - 1) + [(0, missing)]) if missing else part
        return mx.moveaxis(self.all_gather(padded), 0, -2).flatten(-2)[..., :total]

    def recv(self, h: Float[mx.array, "*shape"]) -> Float[mx.array, "*shape"]:
        """Receive the input of the first layer of this process from the previous process."""
        if self.rank == 0:
            return h
        # On this rank no later operation reads h, but the graph of h contains the all-reduce of the
        # embedding. That all-reduce must run here too, and before the receive, as on rank 0.
        mx.async_eval(h)
        return mx.distributed.recv_like(h, self.rank - 1, group=self._group)

    def send(self, h: Float[mx.array, "*shape"]) -> Float[mx.array, "*shape"]:
        """Send `h` to the next process when the result is evaluated, except on the last process."""
        if self.rank == self.size - 1:
            return h
        sent = mx.distributed.send(h, self.rank + 1, group=self._group)
        (h,) = mx.depends([h], [sent])
        return h

    def broadcast_from_last_rank(self, h: Float[mx.array, "*shape"]) -> Float[mx.array, "*shape"]:
        """Return the array `h` of the last process, on every process.

        The graph of `h` is evaluated at once. The other processes wait for its sends and for this
        broadcast, even if this process does not need the result.
        """
        if self.rank < self.size - 1:
            # Only the last process adds its array to the sum below; the others add zeros.
            (h,) = mx.depends([mx.zeros_like(h)], [h])
        last = self.all_reduce(h)
        mx.async_eval(last)
        return last


SINGLE = Communicator()
"""The communicator of a model in one process."""
