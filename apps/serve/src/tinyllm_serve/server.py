"""The listening process: it loads the model, serves, and shuts down gracefully."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp
from tinyllm_qwen import QwenConfig
from tinyllm_qwen.checkpoint.hub import resolve_local

from tinyllm_serve.errors import ServeError
from tinyllm_serve.http.connections import ConnectionLimits, Connections, allow_files
from tinyllm_serve.json_log import log_event
from tinyllm_serve.ranks.launcher import wait_until_closed
from tinyllm_serve.served_model import FAILURE_GRACE_SECONDS, ServedModel
from tinyllm_serve.settings import DRAFT_HEAD, Settings
from tinyllm_serve.signals import Signals


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which would stop listening before streams have ended."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket, before time is spent on loading the model.

    Raises:
        ServeError: if the address is not available.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except UnicodeError as error:  # a part of the name is empty or too long
        raise ServeError(f"cannot listen on {host}:{port}: choose another --host") from error
    except OSError as error:
        # asyncio's message is longer than the system's. Unknown names have error numbers of their
        # own, which `strerror` does not know.
        known = error.errno is not None and not isinstance(error, socket.gaierror)
        reason = os.strerror(error.errno or 0) if known else error.strerror or str(error)
        raise ServeError(
            f"cannot listen on {host}:{port} ({reason}): choose another --host or --port"
        ) from error
    # Connections inherit the option. asyncio sets it for sockets made with IPPROTO_TCP alone.
    # Without it, the body of a response waits 40 ms for the acknowledgement of the headers.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


async def serve(
    settings: Settings,
    served: ServedModel,
    application: ASGIApp,
    *,
    launcher: int | None = None,
) -> None:
    """Serve until a signal comes, then finish the requests in progress.

    These requests have `settings.timeout_graceful_shutdown` seconds. A second signal ends the
    process at once. The end of the launcher counts as a first signal; see `launcher_pipe`. The
    server of a model that several processes share also ends when a step has failed, because the
    processes cannot continue together.

    Raises:
        ServeError: if the address is not available, or the model has failed.
        BackendError, CheckpointError, HubError, ValueError: if the model cannot be loaded.
    """
    _check_model_files(settings)  # before clients can connect: a name may be misspelled
    connections = Connections(
        ConnectionLimits(
            allow_files(settings.max_connections),
            settings.timeout_headers,
            settings.timeout_keep_alive,
            settings.timeout_write,
        ),
        served.metrics,
    )
    with listen(settings.host, settings.port) as listener, Signals() as signals:
        server = _Server(
            uvicorn.Config(
                application,
                http=connections.protocol(),
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                # uvicorn trusts X-Forwarded-For from loopback addresses. Without keys the address
                # and port choose the tenant, so that a client could be another one in each request.
                proxy_headers=False,
                timeout_keep_alive=settings.timeout_keep_alive,
                ws="none",
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        watching = [
            asyncio.create_task(connections.watch()),
            asyncio.create_task(_watch_launcher(launcher, signals)),
        ]
        log_event("listening", url=_url(listener), model=settings.model_names[0])
        try:
            if await _load(served, signals):
                await _wait_for_signal(served, signals)
                served.drain()
                connections.drain()
                seconds = settings.timeout_graceful_shutdown
                log_event("draining", seconds=seconds)
                await _finish(served, server, serving, signals, seconds)
        finally:
            await _close(served, signals)
            await connections.close()
            server.should_exit = server.force_exit = True
            await serving
            for task in watching:
                task.cancel()
        log_event("ended")


def _check_model_files(settings: Settings) -> None:
    """Check that the folders of the model and the draft model exist, and read their configs.

    Models on the Hub are not checked, because that may take a download.

    Raises:
        CheckpointError: if a folder or its config cannot be used.
    """
    models = [(settings.model, settings.revision)]
    if settings.draft_model not in (None, DRAFT_HEAD):
        models.append((settings.draft_model, None))
    for name, revision in models:
        folder = resolve_local(name, revision)
        if folder is not None:
            QwenConfig.from_folder(folder)


async def _load(served: ServedModel, signals: Signals) -> bool:
    """Load the model. Return False if a signal came first."""
    loading = asyncio.create_task(served.start())
    stop = asyncio.create_task(signals.first.wait())
    await asyncio.wait({loading, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not loading.done():
        loading.cancel()
        return False
    loading.result()
    log_event("ready", pid=os.getpid(), **served.facts())
    return True


async def _watch_launcher(launcher: int | None, signals: Signals) -> None:
    """Ask for a graceful shutdown when the launcher has ended. Nothing else would end the ranks."""
    if launcher is not None:
        await wait_until_closed(launcher)
        log_event("the launcher has ended")
        signals.first.set()


async def _wait_for_signal(served: ServedModel, signals: Signals) -> None:
    """Wait for a signal.

    Raises:
        ServeError: if the model fails first.
    """
    stop = asyncio.create_task(signals.first.wait())
    failed = asyncio.create_task(served.failed())
    await asyncio.wait({stop, failed}, return_when=asyncio.FIRST_COMPLETED)
    if not stop.done():
        await asyncio.sleep(FAILURE_GRACE_SECONDS)
        raise ServeError(failed.result())
    failed.cancel()


async def _finish(
    served: ServedModel,
    server: uvicorn.Server,
    serving: asyncio.Task[None],
    signals: Signals,
    seconds: float,
) -> None:
    """Wait until all responses are sent, the time is over, or a second signal comes."""

    async def finish() -> None:
        await served.finish()
        server.should_exit = True
        await asyncio.shield(serving)

    finishing = asyncio.create_task(finish())
    stop = asyncio.create_task(signals.second.wait())
    await asyncio.wait({finishing, stop}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finishing.cancel()
    stop.cancel()


async def _close(served: ServedModel, signals: Signals) -> None:
    """End the model. After a second signal, end the process if this takes too long."""
    closing = asyncio.create_task(served.close())
    stop = asyncio.create_task(signals.second.wait())
    await asyncio.wait({closing, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    await asyncio.wait({closing}, timeout=served.close_timeout)
    if not closing.done():
        log_event("ended")
        os._exit(0)
    closing.result()


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
