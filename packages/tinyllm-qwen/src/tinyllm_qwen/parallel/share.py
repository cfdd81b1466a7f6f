"""One process's share of a model."""

from dataclasses import dataclass

from tinyllm_layers import Ranks

from tinyllm_qwen.parallel.partition import Partition


@dataclass(frozen=True, slots=True)
class Share:
    """What one of several processes computes, and with whom.

    Attributes:
        ranks: the processes.
        partition: which part of every layer this one has.
    """

    ranks: Ranks
    partition: Partition

    @property
    def adders(self) -> Ranks | None:
        """Who adds up what their parts of a block give; None where each has whole blocks."""
        return self.ranks if self.partition.layers is None else None

    @property
    def stages(self) -> Ranks | None:
        """Who hands on what leaves their blocks; None where each has a part of all blocks."""
        return None if self.partition.layers is None else self.ranks
