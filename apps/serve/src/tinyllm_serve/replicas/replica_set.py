"""All replicas of a model, as the server sees them."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Thread
from typing import TypeVar, cast

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator
from starlette.types import Message

from tinyllm_serve.http.errors import unavailable
from tinyllm_serve.metrics import Metrics, labelled_metrics
from tinyllm_serve.replicas.cluster import (
    cluster_works,
    deploy,
    running_replicas,
    start_cluster,
    stop_cluster,
)
from tinyllm_serve.replicas.exchange import ReplicaRequest, RequestSummary
from tinyllm_serve.replicas.local_settings import local_settings
from tinyllm_serve.served_model import Fact, ServedModel
from tinyllm_serve.settings import Settings

T = TypeVar("T")

CHECK_SECONDS = 2.0
"""Seconds between two checks that Ray works."""

CHECK_TIMEOUT = 15.0
"""Seconds that a check may take: without its gcs_server, Ray ends this process after 60."""

CANCEL_TIMEOUT = 2.0
"""Seconds in which cancelled requests must end, before Ray is stopped."""

METRICS_TIMEOUT = 5.0
"""Seconds after which the metrics of replicas are left out, because one of them gives no answer."""


class ReplicaSet(ServedModel):
    """Replicas of a model on Ray Serve, each with an engine of its own.

    Ray replaces a lost replica. While none runs, requests are refused. The set fails if Ray itself
    does. `metrics` has only the HTTP metrics, which this process counts.
    """

    loading = "the replicas are still being started"

    def __init__(self, settings: Settings) -> None:
        """Prepare; `start` starts Ray."""
        self.settings = settings
        self.metrics = Metrics(lambda: None)
        self._handle: DeploymentHandle | None = None
        self._logs: str | None = None
        self._running = 0  # replicas that take requests
        self._answers: set[DeploymentResponseGenerator] = set()  # in progress
        self._unanswered: set[DeploymentResponseGenerator] = set()
        self._is_closing = False
        self._owner = ThreadPoolExecutor(1, thread_name_prefix="ray")
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> None:
        """Start Ray and the replicas.

        Raises:
            UsageError: if an option is not allowed with replicas.
            CheckpointError, HubError: if the model is not available.
            ServeError: if the replicas cannot be started.
        """
        local = await _in_daemon(lambda: local_settings(self.settings))
        loop = asyncio.get_running_loop()
        # In a thread that lives until the end, because Ray's processes end with that thread.
        self._logs = await loop.run_in_executor(self._owner, start_cluster)
        _restore_signal_handlers()
        self._handle = await _in_daemon(lambda: deploy(local, self.settings.model))
        self._running = self.settings.replica_range[0]
        self._state = "ready"

    def facts(self) -> Mapping[str, Fact]:
        """Return the number of replicas, and the folder of Ray's logs."""
        low, high = self.settings.replica_range
        return {"replicas": low, "max_replicas": high, "logs": self._logs}

    async def failed(self) -> str:
        """Wait until Ray has lost this machine, and return the reason."""
        with suppress(TimeoutError):  # Ray blocks without its gcs_server
            while await asyncio.wait_for(_in_daemon(cluster_works), CHECK_TIMEOUT):
                await self._count_replicas()
                await asyncio.sleep(CHECK_SECONDS)
        self._state = "failed"
        return self.failure

    async def _count_replicas(self) -> None:
        """Count the replicas. If none runs, cancel the requests that wait for an answer."""
        # Ray's controller may be starting again, and not know the replicas yet.
        with suppress(TimeoutError, RayError, RayServeException, KeyError):
            self._running = await asyncio.wait_for(_in_daemon(running_replicas), CHECK_TIMEOUT)
        if not self._running:
            for answer in list(self._unanswered):  # Ray lets them wait for ever
                _cancel(answer)

    def check_ready(self) -> None:
        """Check that requests are accepted.

        Raises:
            ApiError: 503 as for any model, and while no replica runs.
        """
        super().check_ready()
        if not self._running:
            raise unavailable("no replica runs: another one is being started")

    @property
    def failure(self) -> str:
        """The reason of the state "failed"."""
        return "Ray has failed: a process of it has died"

    async def finish(self) -> None:
        """Wait until the requests in progress have ended."""
        await self._idle.wait()

    async def close(self) -> None:
        """End the requests in progress, whose clients are told so, and stop Ray."""
        self._is_closing = True
        for answer in list(self._answers):
            _cancel(answer)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), CANCEL_TIMEOUT)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._owner, stop_cluster)

    async def send(self, request: ReplicaRequest) -> AsyncGenerator[Message | RequestSummary, None]:
        """Send a request to a replica, and yield its messages.

        Closing the generator cancels the request.

        Raises:
            ApiError: if no requests are accepted, or the server ends before the answer.
            RayError, RayServeException: if the replica is lost, or all replicas are full.
        """
        self.check_ready()
        assert self._handle is not None  # set before the state is "ready"
        answer = self._handle.options(method_name="respond", stream=True).remote(request)
        del request  # with its body: the answer may take minutes
        self._idle.clear()
        self._answers.add(answer)
        self._unanswered.add(answer)
        try:
            async for message in answer:
                self._unanswered.discard(answer)
                yield cast("Message | RequestSummary", message)
        except (RayError, RayServeException):
            if self._is_closing:
                raise unavailable("the server is shutting down") from None
            raise
        finally:
            self._unanswered.discard(answer)
            self._answers.discard(answer)
            if not self._answers:
                self._idle.set()
            _cancel(answer)

    async def metrics_text(self) -> bytes:
        """Return the metrics of HTTP, and of each replica with its name as a label."""
        if self._handle is None:
            return self.metrics.text()
        try:
            answers = await self._handle.broadcast("metrics").results_async(
                timeout_s=METRICS_TIMEOUT, return_exceptions=True
            )
        except (RayServeException, TimeoutError):  # no replica runs, or one hangs
            answers = []
        pages = cast("list[tuple[str, bytes] | BaseException]", answers)
        parts = dict(each for each in pages if not isinstance(each, BaseException))
        return labelled_metrics(self.metrics.text(), parts)


def _cancel(answer: DeploymentResponseGenerator) -> None:
    """Cancel a request; do nothing if its answer has ended."""
    with suppress(RayServeException):  # raised again if the request was refused
        answer.cancel()


def _restore_signal_handlers() -> None:
    """Install Python's signal handlers again: Ray's own handlers end the process."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.getsignal(number))
        signal.siginterrupt(number, False)


async def _in_daemon(work: Callable[[], T]) -> T:
    """Do work in a daemon thread, for which an interrupted process does not wait."""
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()  # the caller may be cancelled, the work may not

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=run, name="deploy", daemon=True).start()
    return await asyncio.wrap_future(answer)
