"""Which replica has computed which beginning."""

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence

CAPACITY = 1 << 16


class PrefixMap:
    """Chooses replicas so that requests which begin alike meet in one prefix cache.

    The replica of the longest known beginning comes first, unless it has `slack` requests more
    than the one with the fewest: then computing the prompt again takes less time than waiting.
    Without a known beginning it is the one with the fewest requests, in turn where several are.
    """

    def __init__(self, slack: int, capacity: int = CAPACITY) -> None:
        """Start empty.

        Args:
            slack: so many requests more than others a replica must not have to be preferred.
            capacity: beginnings that are remembered; those longest unused are forgotten.
        """
        self._capacity = capacity
        self._slack = slack
        self._replica_of: OrderedDict[bytes, str] = OrderedDict()  # the longest unused first
        self._turn: Counter[str] = Counter()
        self._turns = 0

    def order(self, beginnings: Sequence[bytes], under_way: Mapping[str, int]) -> list[str]:
        """All replicas, the best one for a request first.

        Args:
            beginnings: the request's, the shortest first.
            under_way: requests of each replica that there is.
        """
        ranked = sorted(under_way, key=lambda replica: (under_way[replica], self._turn[replica]))
        for name in reversed(beginnings):
            home = self._replica_of.get(name)
            if home is not None and home in under_way:
                if under_way[home] - under_way[ranked[0]] < self._slack:
                    ranked.remove(home)
                    ranked.insert(0, home)
                break
        if ranked:
            # At once: the next request may come before this one counts as under way.
            self._turns += 1
            self._turn[ranked[0]] = self._turns
        return ranked

    def record(self, beginnings: Sequence[bytes], replica: str) -> None:
        """Note that a request went to a replica, which will have its beginnings from now on."""
        # The shortest last: it is what most requests have in common, and forgotten last.
        for name in reversed(beginnings):
            self._replica_of[name] = replica
            self._replica_of.move_to_end(name)
        while len(self._replica_of) > self._capacity:
            self._replica_of.popitem(last=False)

    def forget(self, replica: str) -> None:
        """A replica is no more: its beginnings would keep others' from being remembered."""
        del self._turn[replica]
        for name in [name for name, home in self._replica_of.items() if home == replica]:
            del self._replica_of[name]
