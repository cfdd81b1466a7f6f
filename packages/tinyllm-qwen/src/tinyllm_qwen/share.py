"""One process's share of a model."""

from dataclasses import dataclass

from tinyllm_layers import Ranks

from tinyllm_qwen.partition import Partition


@dataclass(frozen=True, slots=True)
class Share:
    """What one of several processes computes, and with whom.

    Attributes:
        ranks: the processes.
        partition: which part of every layer this one has.
    """

    ranks: Ranks
    partition: Partition
