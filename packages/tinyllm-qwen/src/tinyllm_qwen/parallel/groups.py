"""The communicators of the processes that share a model, and the partition of each process."""

from collections.abc import Sequence
from dataclasses import dataclass

from tinyllm_layers import SINGLE, Communicator

from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.parallel.partition import Partition


@dataclass(frozen=True, eq=False)
class ParallelGroups:
    """The communicator of each kind of parallelism; `SINGLE` for kinds that are not used.

    Attributes:
        partitions: the partition of each rank, by rank.
        ranks: all processes that share the model. Each has some of the rows of embedding and head.
        tensor: the processes that share every layer by heads, columns or experts.
        pipeline: the processes that each have some of the layers.
    """

    partitions: Sequence[Partition]
    ranks: Communicator = SINGLE
    tensor: Communicator = SINGLE
    pipeline: Communicator = SINGLE

    @classmethod
    def single(cls, config: QwenConfig) -> "ParallelGroups":
        """Make the groups of a model in one process."""
        return cls([Partition.whole(config)])

    @classmethod
    def of(cls, ranks: Communicator, partitions: Sequence[Partition]) -> "ParallelGroups":
        """Make the groups of several processes, whose parts of the model are `partitions`."""
        if partitions[ranks.rank].by_layers:
            return cls(partitions, ranks, pipeline=ranks)
        return cls(partitions, ranks, tensor=ranks)

    @property
    def partition(self) -> Partition:
        """The partition of this process."""
        return self.partitions[self.ranks.rank]
