"""The division of the engine's time between tenants."""

from collections import Counter
from collections.abc import Mapping, Sequence

from tinyllm_engine.request import RequestState
from tinyllm_engine.schedule.step import Chunk

QUANTUM = 0.02
"""Seconds by which the virtual time of a tenant may exceed the lowest one without throttling."""

_FORGET = 0.95
"""The weight of all earlier passes after one more pass, in the fit of the time of a pass."""


class PassTime:
    """The time of a pass as a straight line: `fixed + per_row * rows` seconds.

    The line is a least-squares fit, in which each pass counts less the longer ago it was. Reading
    the weights is the fixed part, arithmetic is the part per row.
    """

    def __init__(self) -> None:
        """Start without measurements."""
        self._passes = self._rows = self._seconds = 0.0
        self._rows_squared = self._rows_seconds = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        """Add a pass of `rows` rows that took `seconds`."""
        self._passes = _FORGET * self._passes + 1
        self._rows = _FORGET * self._rows + rows
        self._seconds = _FORGET * self._seconds + seconds
        self._rows_squared = _FORGET * self._rows_squared + rows * rows
        self._rows_seconds = _FORGET * self._rows_seconds + rows * seconds

    def seconds(self, rows: int) -> float:
        """Return the time of a pass of `rows` rows.

        The time is proportional to `rows` until passes with different numbers of rows were seen.
        """
        if not self._passes:
            return float(rows)
        mean_rows, mean_seconds = self._rows / self._passes, self._seconds / self._passes
        variance = self._rows_squared / self._passes - mean_rows**2
        per_row = mean_seconds / mean_rows
        if variance > 0.01 * mean_rows**2:
            covariance = self._rows_seconds / self._passes - mean_rows * mean_seconds
            per_row = min(max(covariance / variance, 0.0), per_row)
        return mean_seconds + per_row * (rows - mean_rows)


class TenantTime:
    """Weighted fair queueing: the virtual time of a tenant is its engine time over its weight.

    In each step the tenant with the lowest virtual time is served. Another tenant is served in the
    same step, unless its virtual time is ahead by more than `QUANTUM`. Tenants that always have
    work therefore get times in proportion to their weights, however many requests each of them
    has (virtual token counter, Sheng et al. 2024, with seconds in place of tokens).

    The time of a decode pass is divided in proportion to the times that the rows of each tenant
    would take alone. If a pass takes as long for 1 row as for 32, the tenants share it equally and
    no tenant is throttled, because none slows another. The time of grammar masks is charged to the
    tenants of the grammars, because the other rows of the pass wait for them. The time of a drafter
    is divided in proportion to the requests that it drafts for. The rest of the time of a step, for
    scheduling and outputs, is divided in proportion to the requests of the step.
    """

    def __init__(self) -> None:
        """Start without tenants."""
        self._virtual: dict[str, float] = {}
        self._weights: Mapping[str, float] = {}  # of the tenants in the last `choose_throttled`
        self._decode = PassTime()

    def choose_throttled(self, weights: Mapping[str, float]) -> set[str]:
        """Update the virtual times; return the tenants to leave out of the next step, never all.

        A tenant that had no running request starts at the lowest virtual time of the tenants that
        had one, unless its own is higher. It has no claim on time that it left unused. A second
        call with the same tenants changes nothing, unless time was charged in between.

        Args:
            weights: the weight of each tenant that has running requests.
        """
        # The intersection, because Ctrl-C may have interrupted the last call.
        served = self._weights.keys() & self._virtual.keys()
        stayed = [self._virtual[tenant] for tenant in weights if tenant in served]
        floor = min(stayed, default=0.0)
        if not stayed:
            self._virtual.clear()
        for tenant in weights:
            self._virtual[tenant] = max(self._virtual.get(tenant, 0.0), floor)
        self._weights = weights
        # A tenant that has gone keeps its virtual time only as long as it is ahead.
        self._virtual = {
            tenant: time
            for tenant, time in self._virtual.items()
            if tenant in weights or time > floor
        }
        lowest = min((self._virtual[tenant] for tenant in weights), default=0.0)
        return {tenant for tenant in weights if self._virtual[tenant] - lowest > QUANTUM}

    def charge_prefill(self, chunks: Sequence[Chunk], seconds: float) -> None:
        """Charge the time of masks to their tenants, and divide the rest of a prefill pass.

        The rest is divided in proportion to the tokens of each tenant.
        """
        rest = self._charge_masks(chunks, seconds)
        rows = {tenant: float(n) for tenant, n in _rows(chunks).items()}
        self._charge(rows, rest)

    def charge_decode(self, chunks: Sequence[Chunk], seconds: float) -> None:
        """Charge the time of masks to their tenants, and divide the rest of a decode pass."""
        rest = self._charge_masks(chunks, seconds)
        rows = _rows(chunks)
        if rows:
            self._decode.observe(sum(rows.values()), rest)
        alone = {tenant: self._decode.seconds(count) for tenant, count in rows.items()}
        self._charge(alone, rest)

    def charge_requests(self, requests: Sequence[RequestState], seconds: float) -> None:
        """Divide time in proportion to the requests of each tenant: that of Python, for example."""
        counts = Counter(request.tenant for request in requests)
        self._charge({tenant: float(n) for tenant, n in counts.items()}, seconds)

    def _charge_masks(self, chunks: Sequence[Chunk], seconds: float) -> float:
        """Charge the time of masks to their tenants; return the rest of the time of a pass."""
        masks = _mask_seconds(chunks)
        self._add(masks)
        return max(0.0, seconds - sum(masks.values()))

    def _charge(self, costs: Mapping[str, float], seconds: float) -> None:
        """Divide `seconds` between tenants, in proportion to `costs`."""
        total = sum(costs.values())
        if not total:  # all passes so far took no measurable time
            return
        self._add({tenant: seconds * cost / total for tenant, cost in costs.items()})

    def _add(self, times: Mapping[str, float]) -> None:
        for tenant, seconds in times.items():
            # A tenant is gone if all its requests were preempted after they got drafts.
            if tenant in self._weights:
                self._virtual[tenant] += seconds / self._weights[tenant]


def _mask_seconds(chunks: Sequence[Chunk]) -> dict[str, float]:
    """Return the seconds that the masks of a step took, of each tenant with a grammar."""
    seconds: dict[str, float] = {}
    for chunk in chunks:
        constraint = chunk.request.constraint
        if constraint is not None and chunk.num_samples:
            tenant = chunk.request.tenant
            seconds[tenant] = seconds.get(tenant, 0.0) + constraint.step_seconds
    return seconds


def _rows(chunks: Sequence[Chunk]) -> Counter[str]:
    """Return the number of tokens of each tenant."""
    rows: Counter[str] = Counter()
    for chunk in chunks:
        rows[chunk.request.tenant] += len(chunk.tokens)
    return rows
