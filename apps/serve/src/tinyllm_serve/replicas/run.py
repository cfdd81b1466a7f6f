"""What `serve --ray` does."""

import asyncio
import logging

from tinyllm_serve.replica_options import ReplicaOptions
from tinyllm_serve.replicas.cluster import deploy, join_cluster, stop_cluster
from tinyllm_serve.replicas.front import make_front
from tinyllm_serve.replicas.local_settings import local_settings
from tinyllm_serve.replicas.replica_set import ReplicaSet
from tinyllm_serve.server import serve
from tinyllm_serve.settings import Settings

_log = logging.getLogger(__name__)


def run_replicas(settings: Settings, replicas: ReplicaOptions, *, update: bool) -> None:
    """Serve with copies of a model until a signal comes; or replace the copies of such a server.

    Raises:
        UsageError: if an option makes no sense for more than one engine.
        ServeError: if the address cannot be had, or the replicas cannot be started.
    """
    if update:
        local = local_settings(settings)
        join_cluster()
        try:
            deploy(local, replicas)
        finally:
            stop_cluster()
        fields = {"model": settings.served_name, "replicas": replicas.least}
        _log.info("updated", extra={"fields": fields})
    else:
        asyncio.run(_serve(settings, replicas))


async def _serve(settings: Settings, replicas: ReplicaOptions) -> None:
    served = ReplicaSet(settings, replicas)
    await serve(settings, served, make_front(served))
