from abc import ABC, abstractmethod
from asyncio import Future
from collections.abc import Sequence
from dataclasses import dataclass

@dataclass(frozen=True)
class ReplicaID:
    unique_id: str

class RunningReplica:
    @property
    def replica_id(self) -> ReplicaID: ...

class _RoutingContext:
    should_backoff: bool

class _RequestMetadata:
    internal_request_id: str

class PendingRequest:
    args: Sequence[object]
    metadata: _RequestMetadata
    routing_context: _RoutingContext
    future: Future[RunningReplica]

class RequestRouter(ABC):
    @abstractmethod
    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]: ...
    def on_send_request(self, replica_id: ReplicaID) -> None: ...
    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None: ...
    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: object
    ) -> None: ...
    def on_replica_actor_died(self, replica_id: ReplicaID) -> None: ...
