"""How fast one model over several ranks decodes, on paper."""

from collections.abc import Sequence
from dataclasses import dataclass

from tinyllm_bench.errors import UsageError
from tinyllm_bench.parallel.blueprint import Blueprint
from tinyllm_bench.parallel.link import Link
from tinyllm_bench.parallel.traffic import Traffic, mesh_traffic, ring_traffic


@dataclass(frozen=True)
class Prediction:
    """One token of a model over so many ranks.

    A rank reads its part of the weights, and waits for the others: nothing of the one is hidden
    behind the other, since each sum is of what was just computed, and is what comes next.

    Attributes:
        link: the name of what connects them.
        ranks: how many.
        read_bytes: by the rank that reads most.
        traffic: of rank 0, which also gives the orders.
        computing: seconds.
        waiting: seconds.
        speedup: how many times as fast as one rank.
    """

    link: str
    ranks: int
    read_bytes: int
    traffic: Traffic
    computing: float
    waiting: float
    speedup: float

    @property
    def seconds(self) -> float:
        """Of a token."""
        return self.computing + self.waiting

    @property
    def tokens_per_second(self) -> float:
        """Of one text."""
        return 1 / self.seconds


@dataclass(frozen=True)
class Assumptions:
    """What is taken as given.

    Attributes:
        read_rate: bytes a second that a rank reads.
        fixed: seconds of a token that are there however small the part is: what does not get
            less with more ranks.
        keys: tokens in the cache.
    """

    read_rate: float
    fixed: float
    keys: int

    @classmethod
    def of_one(
        cls, blueprint: Blueprint, read_rate: float, alone: float | None, keys: int
    ) -> "Assumptions":
        """Take what one rank needs beyond reading as what is not divided.

        Args:
            blueprint: the model.
            read_rate: bytes a second.
            alone: tokens a second that one rank reaches, None if reading is all that it does.
            keys: tokens in the cache.

        Raises:
            UsageError: if it could not be so fast.
        """
        if alone is None:
            return cls(read_rate, 0.0, keys)
        reading = blueprint.read_bytes(0, 1, keys) / read_rate
        if 1 / alone < reading:
            raise UsageError(
                f"--alone: expected at most {1 / reading:.4g} tokens/s, what "
                f"{read_rate / 1e9:.4g} GB/s allow, got {alone:g}: give --read what it reads"
            )
        return cls(read_rate, 1 / alone - reading, keys)


def predict(
    blueprint: Blueprint, link: Link, most: int, given: Assumptions
) -> tuple[list[Prediction], str]:
    """Predict one rank, two, and so on.

    Args:
        blueprint: the model.
        link: what connects them.
        most: how many ranks at most.
        given: the rest.

    Returns:
        A prediction for each number of ranks that can share the model, and why the first one
        that cannot does not.
    """
    found: list[Prediction] = []
    refusal = ""
    traffic_of = mesh_traffic if link.mesh else ring_traffic
    for size in range(1, most + 1):
        try:
            read = max(blueprint.read_bytes(rank, size, given.keys) for rank in range(size))
        except ValueError as error:
            refusal = refusal or f"{size} ranks: {error}"
            continue
        width = blueprint.dtype.size
        traffic = traffic_of(blueprint.config, width, size, 0, given.keys)
        computing = given.fixed + read / given.read_rate
        waiting = link.seconds(traffic.hops, traffic.path_bytes)
        alone = found[0].seconds if found else computing
        speedup = alone / (computing + waiting)
        found.append(Prediction(link.name, size, read, traffic, computing, waiting, speedup))
    return found, refusal


def fastest(predictions: Sequence[Prediction]) -> Prediction:
    """The number of ranks beyond which more do not pay."""
    return max(predictions, key=lambda each: each.tokens_per_second)


def break_even(predictions: Sequence[Prediction], link: Link) -> float:
    """Seconds a hop may take at most for two ranks to be as fast as one; below zero: none can.

    Raises:
        ValueError: if two ranks are not among the predictions.
    """
    both = {each.ranks: each for each in predictions}
    if not {1, 2} <= both.keys():
        raise ValueError(f"predictions: expected some of 1 and 2 ranks, got {sorted(both)}")
    one, two = both[1], both[2]
    saved = one.computing - two.computing - two.traffic.path_bytes / link.bandwidth
    return saved / two.traffic.hops
