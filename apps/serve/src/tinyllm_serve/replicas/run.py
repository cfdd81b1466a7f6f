"""The command `serve --ray`."""

import asyncio

from tinyllm_serve.json_log import log_event
from tinyllm_serve.replicas.cluster import deploy, join_cluster, stop_cluster
from tinyllm_serve.replicas.front import make_front
from tinyllm_serve.replicas.local_settings import local_settings
from tinyllm_serve.replicas.replica_set import ReplicaSet
from tinyllm_serve.server import serve
from tinyllm_serve.settings import Settings


def run_replicas(settings: Settings) -> None:
    """Serve replicas until a signal comes, or update the replicas of a running server.

    Raises:
        UsageError: if an option does not go together with replicas.
        ServeError: if the address is not available, or the replicas cannot be started.
    """
    if settings.update:
        local = local_settings(settings)
        join_cluster()
        try:
            deploy(local)
        finally:
            stop_cluster()
        log_event("updated", model=settings.model_name, replicas=settings.replica_range[0])
    else:
        asyncio.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    replicas = ReplicaSet(settings)
    await serve(settings, replicas, make_front(replicas))
