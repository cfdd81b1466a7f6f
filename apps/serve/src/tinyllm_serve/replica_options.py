"""How many copies of a model there are, and how requests are shared among them."""

from dataclasses import dataclass

from tinyllm_serve.errors import UsageError

MOST = 256
AFFINITY = 8


@dataclass(frozen=True)
class ReplicaOptions:
    """From how many replicas to how many, and what keeps a request with one of them.

    Attributes:
        least: that are there always.
        most: that may come when many requests are under way.
        affinity: how many requests more than others a replica may have, and still get those whose
            beginning it has computed; 0 shares requests evenly, whatever they begin with.
    """

    least: int
    most: int
    affinity: int = AFFINITY

    @classmethod
    def parse(cls, replicas: str, affinity: int = AFFINITY) -> "ReplicaOptions":
        """Read replicas as they are given: "2", or "1-4".

        Raises:
            UsageError: if it is neither, or a number is out of its range.
        """
        if not 0 <= affinity <= 1024:
            raise UsageError(f"--affinity: expected from 0 to 1024, got {affinity}")
        first, dash, last = replicas.partition("-")
        numbers = [first, last] if dash else [first, first]
        if all(number.isdecimal() and len(number) <= 3 for number in numbers):
            least, most = map(int, numbers)
            if 1 <= least <= most <= MOST:
                return cls(least, most, affinity)
        raise UsageError(
            f"--replicas: expected from 1 to {MOST}, or a range such as 1-4, got {replicas!r}"
        )
