"""All replicas of a model, as one thing that answers."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import TypeVar, cast

from ray.serve.handle import DeploymentHandle
from starlette.types import Message

from tinyllm_serve.api_error import closing
from tinyllm_serve.exchange import Answered, Asked
from tinyllm_serve.labelled_metrics import labelled_metrics
from tinyllm_serve.metrics import Metrics
from tinyllm_serve.replica_options import ReplicaOptions
from tinyllm_serve.replicas.cluster import deploy, start_cluster, stop_cluster
from tinyllm_serve.replicas.local_settings import local_settings
from tinyllm_serve.served import Fact, State
from tinyllm_serve.settings import Settings

T = TypeVar("T")

METRICS_SECONDS = 5.0
"""A replica that has not told its counts by then is left out."""


class ReplicaSet:
    """Copies of a model on Ray Serve, each with an engine of its own.

    Attributes:
        settings: of the server and of each replica.
        state: requests are taken only when it is "ready".
        metrics: what is counted here: HTTP.
    """

    def __init__(self, settings: Settings, replicas: ReplicaOptions) -> None:
        """Prepare; `start` starts Ray."""
        self.settings = settings
        self.state: State = "loading"
        self.metrics = Metrics(lambda: None)
        self._replicas = replicas
        self._handle: DeploymentHandle | None = None
        self._logs: str | None = None
        self._under_way = 0
        self._owner = ThreadPoolExecutor(1, thread_name_prefix="ray")
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> None:
        """Start Ray and the replicas on it.

        Raises:
            UsageError: if an option makes no sense for more than one engine.
            CheckpointError, HubError: if the model cannot be had.
            ServeError: if the replicas cannot be started.
        """
        local = await _in_daemon(lambda: local_settings(self.settings))
        loop = asyncio.get_running_loop()
        # In a thread that lives until the end: Ray's processes end with the one that started them.
        self._logs = await loop.run_in_executor(self._owner, start_cluster)
        _take_signals_back()
        self._handle = await _in_daemon(lambda: deploy(local, self._replicas))
        self.state = "ready"

    def facts(self) -> Mapping[str, Fact]:
        """How many there are, and where Ray's processes write their logs."""
        return {
            "replicas": self._replicas.least,
            "most_replicas": self._replicas.most,
            "logs": self._logs,
        }

    def drain(self) -> None:
        """Take no new requests."""
        self.state = "draining"

    async def finish(self) -> None:
        """Wait until those under way have ended."""
        await self._idle.wait()

    async def close(self) -> None:
        """End Ray."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._owner, stop_cluster)

    async def failed(self) -> str:
        """Wait for ever: a replica that is lost is replaced."""
        await asyncio.Event().wait()
        return ""

    def check_alive(self) -> None:
        """Refuse nothing: a replica that is lost is replaced."""

    def check_ready(self) -> None:
        """Refuse a request, unless requests are taken.

        Raises:
            ApiError: 503 while loading and while draining.
        """
        if self.state == "loading":
            raise closing("the replicas are still being started")
        if self.state == "draining":
            raise closing("the server is shutting down")

    async def ask(self, asked: Asked) -> AsyncGenerator[Message | Answered, None]:
        """Send a request to a replica, and give what it says.

        Closing the generator takes the request back.

        Raises:
            ApiError: if no requests are taken.
            RayError, RayServeException: if the replica is lost, or none has room.
        """
        self.check_ready()
        answer = self._deployed.options(method_name="respond", stream=True).remote(asked)
        self._under_way += 1
        self._idle.clear()
        try:
            async for message in answer:
                yield cast("Message | Answered", message)
        finally:
            answer.cancel()  # nothing, if it has ended
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def metrics_text(self) -> bytes:
        """The counts of HTTP, and those of each replica with its name."""
        if self._handle is None:
            return self.metrics.text()
        told = await self._handle.broadcast("metrics").results_async(
            timeout_s=METRICS_SECONDS, return_exceptions=True
        )
        pages = cast("list[tuple[str, bytes] | BaseException]", told)
        parts = dict(each for each in pages if not isinstance(each, BaseException))
        return labelled_metrics(self.metrics.text(), parts)

    @property
    def _deployed(self) -> DeploymentHandle:
        if self._handle is None:
            raise closing("the replicas are still being started")
        return self._handle


def _take_signals_back() -> None:
    """Put Python's handlers again where Ray has put its own, which end the process."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.getsignal(number))
        signal.siginterrupt(number, False)


async def _in_daemon(work: Callable[[], T]) -> T:
    """Do work in a thread that a process which was interrupted does not wait for."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            loop.call_soon_threadsafe(fail, error)
        else:
            loop.call_soon_threadsafe(succeed, result)

    def succeed(result: T) -> None:
        if not answer.done():
            answer.set_result(result)

    def fail(error: BaseException) -> None:
        if not answer.done():
            answer.set_exception(error)

    Thread(target=run, name="deploy", daemon=True).start()
    return await answer
