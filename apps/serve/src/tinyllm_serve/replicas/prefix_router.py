"""Ray Serve's request router, with the prefix-aware choice of a replica."""

from collections import Counter

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from tinyllm_serve.replicas.exchange import ReplicaRequest
from tinyllm_serve.replicas.prefix_map import PrefixMap


class PrefixRouter(RequestRouter):
    """Send requests with a common prefix to one replica: see `PrefixMap`.

    All requests come through one process, so that the router can count the requests in progress.
    Ray's own counts are cached for ten seconds, and a long answer takes longer than that.
    """

    def initialize_state(self, slack: int) -> None:
        """Start without requests; `slack` is explained at `PrefixMap`."""
        self._map = PrefixMap(slack=slack)
        self._load: Counter[ReplicaID] = Counter()
        self._chosen: dict[str, str] = {}  # the best replica of each request that is not sent yet

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return the candidates, the best one first, each in a rank of its own."""
        if pending_request is not None:
            # Without a back-off Ray asks again at once, and again, while all replicas are full.
            pending_request.routing_context.should_backoff = True
        by_name = {each.replica_id.unique_id: each for each in candidate_replicas}
        # Of requests that come together, Ray sends none before it has asked about all of them.
        coming = Counter(self._chosen.values())
        load = {name: self._load[each.replica_id] + coming[name] for name, each in by_name.items()}
        ranked = self._map.rank(_prefixes(pending_request), load)
        if pending_request is not None and ranked:
            identity = pending_request.metadata.internal_request_id
            if identity not in self._chosen:
                # Once it is done, the request is sent, and counted there, or has ended. Ray may
                # send it again with a new future, for which this method is called again.
                pending_request.future.add_done_callback(
                    lambda _future: self._chosen.pop(identity, None)
                )
            self._chosen[identity] = ranked[0]
        return [[by_name[name]] for name in ranked]

    def on_send_request(self, replica_id: ReplicaID) -> None:
        """Count a request that was sent."""
        super().on_send_request(replica_id)
        self._load[replica_id] += 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Count a request that has ended, or was refused."""
        super().on_request_completed(replica_id, internal_request_id)
        self._load[replica_id] = max(0, self._load[replica_id] - 1)

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: object
    ) -> None:
        """Record the replica of a request's prefixes."""
        super().on_request_routed(pending_request, replica_id, result)
        self._map.record(_prefixes(pending_request), replica_id.unique_id)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forget a lost replica."""
        super().on_replica_actor_died(replica_id)
        del self._load[replica_id]
        self._map.forget(replica_id.unique_id)


def _prefixes(request: PendingRequest | None) -> tuple[bytes, ...]:
    match request:
        case PendingRequest(args=[ReplicaRequest(prefixes=prefixes)]):
            return prefixes
    return ()
