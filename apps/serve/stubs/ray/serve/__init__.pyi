from collections.abc import Callable, Mapping

from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import ReplicaID
from ray.serve.schema import LoggingConfig, ServeStatus

class Application: ...

class Deployment:
    def bind(self, *args: object) -> Application: ...

class _ReplicaContext:
    replica_id: ReplicaID

def start(*, proxy_location: str, logging_config: LoggingConfig) -> None: ...
def run(target: Application, *, name: str, route_prefix: str | None) -> DeploymentHandle: ...
def status() -> ServeStatus: ...
def get_app_handle(name: str) -> DeploymentHandle: ...
def get_replica_context() -> _ReplicaContext: ...
def deployment(
    _func_or_class: Callable[..., object],
    *,
    name: str,
    num_replicas: int | None,
    autoscaling_config: AutoscalingConfig | None,
    max_ongoing_requests: int,
    max_queued_requests: int,
    ray_actor_options: Mapping[str, float],
    health_check_period_s: float,
    health_check_timeout_s: float,
    graceful_shutdown_wait_loop_s: float,
    graceful_shutdown_timeout_s: float,
    max_constructor_retry_count: int,
    max_surge_percent: int,
    logging_config: LoggingConfig,
    request_router_config: RequestRouterConfig,
) -> Deployment: ...
