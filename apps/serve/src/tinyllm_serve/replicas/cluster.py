"""The Ray cluster, and the deployment of replicas on it."""

import fcntl
import logging
from io import TextIOWrapper
from pathlib import Path
from typing import cast

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig
from tinyllm_cli.cores import usable_cores

from tinyllm_serve.errors import ServeError
from tinyllm_serve.replicas.prefix_router import PrefixRouter
from tinyllm_serve.replicas.replica import Replica
from tinyllm_serve.settings import AFFINITY, Settings

APPLICATION = "tinyllm"
OBJECT_BYTES = 256_000_000
"""Bytes of shared memory for requests and responses between processes."""

SPARE_REQUESTS = 64
"""Requests that Ray may send to a replica beyond those that its engine can run and queue."""


def start_cluster() -> str:
    """Start Ray on this machine, for this process, on the loopback address alone.

    Ray's processes end at once when the calling thread ends.

    Returns:
        The folder with the logs of Ray's processes.
    """
    _share_log()
    try:
        context = ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=OBJECT_BYTES,
            namespace=APPLICATION,
        )
    except Exception as error:  # Ray raises no other kind when one of its processes is too slow
        raise ServeError(f"Ray cannot be started: {error}") from error
    serve.start(proxy_location="Disabled", logging_config=_log_config())
    return f"{context.address_info['session_dir']}/logs"


def join_cluster() -> TextIOWrapper:
    """Connect to the Ray of a running `serve --ray`, or to the Ray at RAY_ADDRESS, for an update.

    Returns:
        A locked file: no other update can start until it is closed.

    Raises:
        ServeError: if none is running, or another update runs.
    """
    _share_log()
    try:
        context = ray.init(
            address="auto", log_to_driver=False, logging_level=logging.ERROR, namespace=APPLICATION
        )
    except ConnectionError as error:
        raise ServeError("--update: no 'serve --ray' runs on this machine: start one") from error
    if APPLICATION not in serve.status().applications:
        raise ServeError("--update: Ray runs, but no 'serve --ray' on it: start one")
    lock = (Path(context.address_info["session_dir"]) / "update.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ServeError("--update: another update runs: wait for its end") from error
    return lock


def deploy(settings: Settings, root: str) -> DeploymentHandle:
    """Start the replicas, or replace running ones one after the other, and wait for them.

    `settings` are the settings of each replica: see `local_settings`. `root` is the model as the
    operator has named it.

    Raises:
        ServeError: if the replicas cannot be started; the message has the reason of the
            last failure.
    """
    low, high = settings.replica_range
    affinity = AFFINITY if settings.affinity is None else settings.affinity
    capacity = settings.max_num_seqs + settings.max_waiting + SPARE_REQUESTS
    options = serve.deployment(
        Replica,
        name=Replica.__name__,
        num_replicas=low if low == high else None,
        autoscaling_config=_autoscaling(settings),
        max_ongoing_requests=capacity,
        max_queued_requests=capacity * high,  # of the router, for all replicas
        ray_actor_options={"num_cpus": 0},  # replicas share the cores: Ray need not reserve any
        health_check_period_s=2.0,
        health_check_timeout_s=30.0,
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=settings.timeout_graceful_shutdown,
        max_constructor_retry_count=2,
        max_surge_percent=1,  # rounded up to one more replica, to update without a gap
        logging_config=_log_config(),
        request_router_config=RequestRouterConfig(
            request_router_class=PrefixRouter, request_router_kwargs={"slack": affinity}
        ),
    )
    application = options.bind(settings, root, max(1, usable_cores() // high))
    try:
        return serve.run(application, name=APPLICATION, route_prefix=None)
    except RuntimeError as error:
        raise ServeError(f"the replicas cannot be started: {_reason()}") from error


def cluster_works() -> bool:
    """Return False once Ray's process on this machine has died: no replica is then replaced."""
    try:
        return any(node["Alive"] for node in ray.nodes())
    except RayError:
        return False


def running_replicas() -> int:
    """Return the number of replicas that take requests; raises RayError if Ray has failed."""
    deployment = serve.status().applications[APPLICATION].deployments[Replica.__name__]
    return deployment.replica_states.get("RUNNING", 0)


def deployed() -> tuple[Settings, str] | None:
    """Return the arguments of `deploy` for the running replicas; None if no replica answers."""
    handle = serve.get_app_handle(APPLICATION).options(method_name="deployed")
    try:
        return cast("tuple[Settings, str]", handle.remote().result(timeout_s=10.0))
    except (RayError, RayServeException, TimeoutError):
        return None


def stop_cluster() -> None:
    """Stop Ray with all replicas, if this process has started it."""
    ray.shutdown()


def _reason() -> str:
    """Return the reason why the last replica did not start: the last line of its traceback."""
    state = serve.status().applications[APPLICATION].deployments[Replica.__name__]
    return state.message.strip().rpartition("\n")[2]


def _autoscaling(settings: Settings) -> AutoscalingConfig | None:
    """Return the rule to add a replica when each one runs half of `max_num_seqs` requests."""
    low, high = settings.replica_range
    if low == high:
        return None
    return AutoscalingConfig(
        min_replicas=low,
        max_replicas=high,
        target_ongoing_requests=max(1.0, settings.max_num_seqs / 2),
        metrics_interval_s=1.0,
        look_back_period_s=3.0,
        upscale_delay_s=3.0,
        downscale_delay_s=60.0,
    )


def _share_log() -> None:
    """Write Ray's warnings to the log of this process, and nothing else to stderr."""
    for name in ("ray", "ray.serve"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.WARNING)


def _log_config() -> LoggingConfig:
    return LoggingConfig(log_level="WARNING", enable_access_log=False)
