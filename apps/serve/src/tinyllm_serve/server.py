"""The process that listens: it loads the model, serves, and ends in good order."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from tinyllm_serve.errors import ServeError
from tinyllm_serve.json_log import announce
from tinyllm_serve.served import FAREWELL, Served
from tinyllm_serve.settings import Settings
from tinyllm_serve.signals import Signals


class _Server(uvicorn.Server):
    """uvicorn, but for its signals: it would close its doors before the streams have ended."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """Take an address, before the model is loaded in vain.

    Raises:
        ServeError: if it cannot be had.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        # asyncio says more of it than the system, and a name that nobody knows has other numbers.
        known = error.errno is not None and not isinstance(error, socket.gaierror)
        reason = os.strerror(error.errno or 0) if known else error.strerror or str(error)
        raise ServeError(
            f"cannot listen on {host}:{port} ({reason}): choose another --host or --port"
        ) from error


async def serve(settings: Settings, served: Served, application: ASGIApp) -> None:
    """Serve until a signal comes; then finish what is under way, within `settings.drain` seconds.

    A second signal ends it at once. A model that several processes share cannot be used again once
    a step has failed, so that a server of one ends then.

    Args:
        settings: where to listen.
        served: what answers.
        application: its endpoints.

    Raises:
        ServeError: if the address cannot be had, or nothing can be answered any more.
        BackendError, CheckpointError, HubError, ValueError: if the model cannot be loaded.
    """
    with listen(settings.host, settings.port) as listener:
        server = _Server(
            uvicorn.Config(
                application,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                ws="none",
            )
        )
        signals = Signals()
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        announce("listening", url=_url(listener), model=settings.served_name)
        try:
            if await _loaded(served, signals):
                await _asked_or_failed(served, signals)
                served.drain()
                announce("draining", seconds=settings.drain)
                await _finish(served, server, serving, signals, settings.drain)
        finally:
            await served.close()
            server.should_exit = server.force_exit = True
            await serving
        announce("ended")


async def _loaded(served: Served, signals: Signals) -> bool:
    """Load the model; False if a signal came before it was there."""
    loading = asyncio.create_task(served.start())
    asked = asyncio.create_task(signals.first.wait())
    await asyncio.wait({loading, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if not loading.done():
        loading.cancel()
        return False
    loading.result()
    announce("ready", **served.facts())
    return True


async def _asked_or_failed(served: Served, signals: Signals) -> None:
    """Wait for a signal.

    Raises:
        ServeError: if nothing can be answered any more before that.
    """
    asked = asyncio.create_task(signals.first.wait())
    failed = asyncio.create_task(served.failed())
    await asyncio.wait({asked, failed}, return_when=asyncio.FIRST_COMPLETED)
    if not asked.done():
        await asyncio.sleep(FAREWELL)
        raise ServeError(failed.result())
    failed.cancel()


async def _finish(
    served: Served,
    server: uvicorn.Server,
    serving: asyncio.Task[None],
    signals: Signals,
    seconds: float,
) -> None:
    """Wait until all answers are with their clients, the time is over, or a second signal comes."""

    async def finish() -> None:
        await served.finish()
        server.should_exit = True
        await asyncio.shield(serving)

    finishing = asyncio.create_task(finish())
    urged = asyncio.create_task(signals.second.wait())
    await asyncio.wait(
        {finishing, urged},
        timeout=seconds,
        return_when=asyncio.FIRST_COMPLETED,
    )
    finishing.cancel()
    urged.cancel()


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
