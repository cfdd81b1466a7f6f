"""The groups of processes that share a model, and the part of each process."""

from collections.abc import Sequence
from dataclasses import dataclass

from tinyllm_layers import SINGLE, Communicator

from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.parallel.partition import Partition


@dataclass(frozen=True, eq=False)
class ParallelGroups:
    """The communicator of each kind of parallelism; the identity for unused kinds.

    Attributes:
        partitions: the part of the model that each rank has, by rank.
        ranks: all processes that share the model. They share its vocabulary.
        tensor: the processes that share each layer by heads, columns or experts.
        pipeline: the processes that divide the layers among them.
    """

    partitions: Sequence[Partition]
    ranks: Communicator = SINGLE
    tensor: Communicator = SINGLE
    pipeline: Communicator = SINGLE

    @classmethod
    def single(cls, config: QwenConfig) -> "ParallelGroups":
        """Make the groups of a whole model in this process."""
        return cls([Partition.whole(config)])

    @classmethod
    def of(cls, ranks: Communicator, partitions: Sequence[Partition]) -> "ParallelGroups":
        """Make the groups of several processes that share the model as the partitions say."""
        if partitions[ranks.rank].by_layers:
            return cls(partitions, ranks, pipeline=ranks)
        return cls(partitions, ranks, tensor=ranks)

    @property
    def partition(self) -> Partition:
        """The part of the model that this process has."""
        return self.partitions[self.ranks.rank]
