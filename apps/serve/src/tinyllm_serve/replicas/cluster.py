"""Ray, and the replicas on it."""

import logging
import os
import sys

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from tinyllm_serve.errors import ServeError
from tinyllm_serve.replica_options import ReplicaOptions
from tinyllm_serve.replicas.prefix_router import PrefixRouter
from tinyllm_serve.replicas.replica import Replica
from tinyllm_serve.settings import Settings

APPLICATION = "tinyllm"
OBJECT_BYTES = 256_000_000
"""For requests and answers on their way between processes."""

SPARE = 64
"""Requests that a replica takes beside those that its engine computes or lets wait."""


def start_cluster() -> str:
    """Start Ray on this machine, for this process and on the loopback address alone.

    Its processes end with the thread that calls this, at once.

    Returns:
        The folder with the logs of its processes.
    """
    _share_log()
    context = ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=OBJECT_BYTES,
        namespace=APPLICATION,
    )
    serve.start(proxy_location="Disabled", logging_config=_log_config())
    return f"{context.address_info['session_dir']}/logs"


def join_cluster() -> None:
    """Reach the Ray that another `serve --ray` has started, or that RAY_ADDRESS names.

    Raises:
        ServeError: if there is none.
    """
    _share_log()
    try:
        ray.init(
            address="auto",
            log_to_driver=False,
            logging_level=logging.ERROR,
            namespace=APPLICATION,
        )
    except ConnectionError as error:
        raise ServeError("--update: no 'serve --ray' runs on this machine: start one") from error
    if APPLICATION not in serve.status().applications:
        raise ServeError("--update: Ray runs, but no 'serve --ray' on it: start one")


def deploy(settings: Settings, replicas: ReplicaOptions) -> DeploymentHandle:
    """Start the replicas, or replace those that there are, one after the other; wait for them.

    Args:
        settings: of each replica: see `local_settings`.
        replicas: how many.

    Raises:
        ServeError: if they cannot be started; the message says what they said.
    """
    room = settings.max_running + settings.max_waiting + SPARE
    options = serve.deployment(
        Replica,
        name=Replica.__name__,
        num_replicas=replicas.least if replicas.least == replicas.most else None,
        autoscaling_config=_autoscaling(settings, replicas),
        max_ongoing_requests=room,
        max_queued_requests=room,
        ray_actor_options={"num_cpus": 0},  # they share the cores: none has to wait for one
        health_check_period_s=2.0,
        health_check_timeout_s=30.0,
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=settings.drain,
        max_constructor_retry_count=2,
        max_surge_percent=1,  # rounded up: one more, so that one always answers
        logging_config=_log_config(),
        request_router_config=RequestRouterConfig(
            request_router_class=PrefixRouter, request_router_kwargs={"slack": replicas.affinity}
        ),
    )
    application = options.bind(settings, max(1, core_count() // replicas.most))
    try:
        return serve.run(application, name=APPLICATION, route_prefix=None)
    except RuntimeError as error:
        raise ServeError(f"the replicas cannot be started: {_reason()}") from error


def stop_cluster() -> None:
    """End Ray, if this process has started it, and all replicas with it."""
    ray.shutdown()


def core_count() -> int:
    """The cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _reason() -> str:
    """Why the last replica did not start: the end of the traceback that Ray has of it."""
    state = serve.status().applications[APPLICATION].deployments[Replica.__name__]
    return state.message.strip().rpartition("\n")[2]


def _autoscaling(settings: Settings, replicas: ReplicaOptions) -> AutoscalingConfig | None:
    """One more replica where those that there are have half of what they can compute at a time."""
    if replicas.least == replicas.most:
        return None
    return AutoscalingConfig(
        min_replicas=replicas.least,
        max_replicas=replicas.most,
        target_ongoing_requests=max(1.0, settings.max_running / 2),
        metrics_interval_s=1.0,
        look_back_period_s=3.0,
        upscale_delay_s=3.0,
        downscale_delay_s=60.0,
    )


def _share_log() -> None:
    """Have Ray's warnings written to the log of this process, and nothing else to stderr."""
    for name in ("ray", "ray.serve"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.WARNING)


def _log_config() -> LoggingConfig:
    return LoggingConfig(log_level="WARNING", enable_access_log=False)
