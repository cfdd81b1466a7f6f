"""The engine in a thread of its own, for servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

from tinyllm_qwen import QwenConfig, Tokenizer

from tinyllm_engine.config import EngineSettings
from tinyllm_engine.engine import Engine
from tinyllm_engine.malloc_trim import release_free_memory
from tinyllm_engine.output import EngineStats, Output
from tinyllm_engine.request import Request, RequestFailedError, RequestState

T = TypeVar("T")

_log = logging.getLogger(__name__)

IDLE_SECONDS = 1.0
"""Time without requests after which buffers are freed that the next step would have reused."""

MAX_FAILURES = 16
"""Failed steps in succession after which the engine is closed."""


class EngineClosedError(RuntimeError):
    """The engine takes no requests: it is closed, or it has failed; the message says which."""


@dataclass(eq=False)
class _Stream:
    """The outputs of a request between the engine's thread and the event loop."""

    outputs: asyncio.Queue[Output | RuntimeError] = field(default_factory=asyncio.Queue)
    handle: RequestState | None = None


_Call = Callable[[Engine], None]
"""A function to be called between two steps."""


class AsyncEngine:
    """An `Engine` whose tokens are awaited.

    One thread loads the model, computes every step and owns the engine, because MLX's streams
    belong to threads. Between two steps it runs the calls that were queued meanwhile. The event
    loop never waits for a step.
    """

    def __init__(
        self, make: Callable[[], Engine], failing: Callable[[], None] | None = None
    ) -> None:
        """Prepare the engine; `start` loads the model.

        Args:
            make: the function that makes the engine, called in the thread that will own it.
            failing: a callback in that thread after a failure of the engine, before its requests
                fail. It can call `fail` first with a better reason.
        """
        self._make = make
        self._failing = failing
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._streams: dict[RequestState, _Stream] = {}  # used by the engine's thread only
        self._pending: set[Callable[[BaseException], None]] = set()
        self._closed: str | None = None
        self._ended = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._in_progress = 0
        self._embedding = asyncio.Lock()
        self._engine: Engine | None = None
        self._thread: Thread | None = None

    async def start(self) -> None:
        """Load the model. Errors of the loading are raised here."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        # A daemon: a process that was interrupted does not wait for a step.
        self._thread = Thread(target=self._own, args=(ready,), name="engine", daemon=True)
        self._thread.start()
        await ready

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, which any thread may use."""
        return self._started.tokenizer

    @property
    def config(self) -> QwenConfig:
        """The model's architecture."""
        return self._started.model.config

    @property
    def settings(self) -> EngineSettings:
        """The engine's limits and choices."""
        return self._started.settings

    @property
    def stats(self) -> EngineStats:
        """The state of the engine, and its counts; they are read between or during steps."""
        return self._started.stats

    @property
    def closed(self) -> str | None:
        """The reason why the engine takes no requests; None while it does, or is loading."""
        return self._closed

    async def ended(self) -> None:
        """Wait until no step will follow: after `close`, `fail`, or a failure of the engine."""
        await self._ended.wait()

    async def stream(self, request: Request) -> AsyncGenerator[Output, None]:
        """Yield the outputs of a request as they come.

        Closing the generator, or cancelling the task that waits for it, cancels the request: its
        pages are free before the next step.

        Raises:
            RequestError: if the request can never be served.
            RequestFailedError: if the steps that computed the request failed.
            EngineFullError: if the queue is full.
            EngineClosedError: if the engine is closed, or fails in the middle.
        """
        self._refuse_if_closed()
        stream = _Stream()
        self._in_progress += 1
        self._idle.clear()
        try:
            await self._call(lambda engine: self._begin(engine, request, stream))
            reason = None
            while reason is None:
                output = await stream.outputs.get()
                if isinstance(output, RuntimeError):
                    raise output
                reason = output.finish_reason
                yield output
        finally:
            # Calls are run in order: by then the request has been added, if it ever is.
            self._calls.put(lambda engine: self._leave(engine, stream))
            self._in_progress -= 1
            if not self._in_progress:
                self._idle.set()

    async def embed(self, tokens: Sequence[int]) -> list[float]:
        """Return the embedding of a text: see `EmbeddingRequest`.

        A text is computed like a long prompt, one chunk between two steps, and one text after the
        other. Many texts therefore delay running requests no more than one text, and memory holds
        the keys and values of one text.

        Raises:
            RequestError: if the text is empty or too long.
            EngineClosedError: if the engine is closed.
        """
        self._refuse_if_closed()
        embedding = await self._call(lambda engine: engine.embedding(tokens))
        async with self._embedding:
            vector = None
            while vector is None:
                vector = await self._call(lambda _: embedding.advance())
        return vector

    async def drain(self) -> None:
        """Refuse new requests, and wait until the requests in progress have ended."""
        self._closed = self._closed or "the server is shutting down"
        await self._idle.wait()

    async def close(self) -> None:
        """End at once: requests in progress fail, and the thread with the model ends.

        If the settings have a `prefix_path`, the prefix cache is saved there first.
        """
        self._closed = self._closed or "the server is shutting down"
        self._calls.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def fail(self, reason: str) -> None:
        """End at once, even if a step never ends. Any thread may call this after `start`.

        Requests in progress fail, and the thread with the model is abandoned: a step that needs
        another process waits for ever when that process is gone.

        Args:
            reason: the message of the error that all requests get from now on.
        """
        self._loop.call_soon_threadsafe(self._end, reason)

    @property
    def _started(self) -> Engine:
        if self._engine is None:
            raise EngineClosedError("the engine was not started")
        return self._engine

    def _refuse_if_closed(self) -> None:
        if self._closed is not None or self._engine is None:
            raise EngineClosedError(self._closed or "the engine was not started")

    async def _call(self, function: Callable[[Engine], T]) -> T:
        """Call a function in the engine's thread, between two steps; return its result."""
        answer: asyncio.Future[T] = self._loop.create_future()

        def run(engine: Engine) -> None:
            try:
                result = function(engine)
            except Exception as error:  # of any kind: the caller gets it
                self._loop.call_soon_threadsafe(_fail, answer, error)
            else:
                self._loop.call_soon_threadsafe(_resolve, answer, result)

        give_up = partial(_fail, answer)
        self._pending.add(give_up)
        self._calls.put(run)
        try:
            return await answer
        finally:
            self._pending.discard(give_up)

    def _own(self, ready: asyncio.Future[None]) -> None:
        """Load the model, then run calls and steps in turn: the engine's thread."""
        try:
            self._engine = self._make()
        except BaseException as error:
            self._loop.call_soon_threadsafe(_fail, ready, error)
            return
        self._loop.call_soon_threadsafe(_resolve, ready, None)
        reason = None
        try:
            while self._run_calls(self._engine):
                self._deliver(self._engine.step())
                if self._engine.failures >= MAX_FAILURES:
                    raise RuntimeError(f"{MAX_FAILURES} steps have failed in succession")
            if self._engine.settings.prefix_path is not None:
                self._engine.save_prefixes()
        except Exception as error:
            _log.exception("the engine has failed")
            if self._failing is not None:
                self._failing()
            reason = f"the engine has failed: {error}"
        self._loop.call_soon_threadsafe(self._end, reason)

    def _run_calls(self, engine: Engine) -> bool:
        """Run all queued calls, and wait for more while no request is in progress.

        Returns:
            False if the engine is to end.
        """
        timeout: float | None = IDLE_SECONDS
        while True:
            try:
                call = self._calls.get(block=not engine.has_work, timeout=timeout)
            except Empty:
                if engine.has_work:
                    return True
                release_free_memory()  # the pages stay; the next step takes a little longer
                timeout = None
                continue
            if call is None:
                return False
            call(engine)

    def _deliver(self, outputs: list[tuple[RequestState, Output]]) -> None:
        """Pass the outputs of a step to the event loop, all in one call."""
        pairs: list[tuple[_Stream, Output | RuntimeError]] = [
            (self._streams[handle], output) for handle, output in outputs
        ]
        if not outputs:  # only then can a request have failed
            pairs = [
                (stream, RequestFailedError(f"the request failed: {handle.error}: send it again"))
                for handle, stream in self._streams.items()
                if handle.error is not None
            ]
        self._loop.call_soon_threadsafe(_put, pairs)

    def _begin(self, engine: Engine, request: Request, stream: _Stream) -> None:
        stream.handle = engine.add(request)
        self._streams[stream.handle] = stream

    def _leave(self, engine: Engine, stream: _Stream) -> None:
        if stream.handle is not None:
            engine.cancel(stream.handle)
            del self._streams[stream.handle]

    def _end(self, reason: str | None) -> None:
        """Fail everything that waits, in the event loop, when no step will follow.

        The first failure's reason is kept, and a failure before a requested end.
        """
        if self._ended.is_set():
            return
        self._ended.set()
        self._closed = reason or self._closed or "the engine has ended"
        error = EngineClosedError(self._closed)
        for stream in list(self._streams.values()):  # the engine's thread may still be there
            stream.outputs.put_nowait(error)
        for give_up in self._pending:
            give_up(error)


def _put(pairs: list[tuple[_Stream, Output | RuntimeError]]) -> None:
    for stream, output in pairs:
        stream.outputs.put_nowait(output)


def _resolve(answer: asyncio.Future[T], result: T) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[T], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
