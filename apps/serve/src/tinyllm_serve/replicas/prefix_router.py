"""Ray Serve's choice of a replica, by what a request begins with."""

from collections import Counter

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from tinyllm_serve.exchange import Asked
from tinyllm_serve.prefix_map import PrefixMap


class PrefixRouter(RequestRouter):
    """Sends requests which begin alike to one replica: see `PrefixMap`.

    All requests come through one process, so that the numbers of those under way are its own. Ray's
    cached ones are forgotten after ten seconds, in which a long answer is still being written.
    """

    def initialize_state(self, slack: int) -> None:
        """Start with no requests.

        Args:
            slack: of the `PrefixMap`.
        """
        self._map = PrefixMap(slack=slack)
        self._under_way: Counter[ReplicaID] = Counter()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The candidates, each a rank of its own, the best one first."""
        if pending_request is not None:
            # If all are full: otherwise Ray asks again at once, and again.
            pending_request.routing_context.should_backoff = True
        by_name = {each.replica_id.unique_id: each for each in candidate_replicas}
        under_way = {name: self._under_way[each.replica_id] for name, each in by_name.items()}
        order = self._map.order(_beginnings(pending_request), under_way)
        return [[by_name[name]] for name in order]

    def on_send_request(self, replica_id: ReplicaID) -> None:
        """Count a request that was sent."""
        super().on_send_request(replica_id)
        self._under_way[replica_id] += 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Count a request that has ended, or was not taken."""
        super().on_request_completed(replica_id, internal_request_id)
        self._under_way[replica_id] = max(0, self._under_way[replica_id] - 1)

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: object
    ) -> None:
        """Remember where the beginnings of a request are."""
        super().on_request_routed(pending_request, replica_id, result)
        self._map.record(_beginnings(pending_request), replica_id.unique_id)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forget what a replica had."""
        super().on_replica_actor_died(replica_id)
        del self._under_way[replica_id]
        self._map.forget(replica_id.unique_id)


def _beginnings(request: PendingRequest | None) -> tuple[bytes, ...]:
    match request:
        case PendingRequest(args=[Asked(beginnings=beginnings)]):
            return beginnings
    return ()
