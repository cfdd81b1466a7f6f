"""The communicators of the processes that share a model, and the partition of each process."""

from collections.abc import Sequence
from dataclasses import dataclass

from tinyllm_layers import SINGLE, Communicator

from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.partition.partition import Partition


@dataclass(frozen=True, eq=False)
class ParallelGroups:
    """The communicator of each kind of parallelism; `SINGLE` for kinds that are not used.

    Several processes use either tensor or pipeline parallelism, never both.

    Attributes:
        partitions: the partition of each process; the index is its rank.
        world: all processes that share the model. Every process has a part of the vocabulary, which
            is some rows of the embedding and of the head.
        tensor: the processes that divide every layer into heads, columns or experts.
        pipeline: the processes that each have some of the layers.
    """

    partitions: Sequence[Partition]
    world: Communicator = SINGLE
    tensor: Communicator = SINGLE
    pipeline: Communicator = SINGLE

    @classmethod
    def single(cls, config: QwenConfig) -> "ParallelGroups":
        """Make the groups of a model in one process."""
        return cls([Partition.whole(config)])

    @classmethod
    def of(cls, world: Communicator, partitions: Sequence[Partition]) -> "ParallelGroups":
        """Make the groups of several processes.

        Args:
            world: the communicator of all processes.
            partitions: the partition of each process; the index is its rank.
        """
        if partitions[world.rank].by_layers:
            return cls(partitions, world, pipeline=world)
        return cls(partitions, world, tensor=world)

    @property
    def partition(self) -> Partition:
        """The partition of this process."""
        return self.partitions[self.world.rank]
