"""An asyncio interface to an engine that runs in its own thread, for servers."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

from tinyllm_qwen import QwenConfig, Tokenizer
from tinyllm_qwen.malloc_trim import IDLE_SECONDS, release_free_memory

from tinyllm_engine.config import EngineSettings
from tinyllm_engine.engine import Engine
from tinyllm_engine.errors import EngineClosedError, UnreadOutputError, for_client
from tinyllm_engine.grammar.compiler import CompiledGrammar
from tinyllm_engine.grammar.worker import MAX_SECONDS, too_slow
from tinyllm_engine.output import EngineStats, Output
from tinyllm_engine.request import Request, RequestState

T = TypeVar("T")

_log = logging.getLogger(__name__)

MAX_UNREAD_OUTPUTS = 4096
"""Number of unread outputs of a request beyond which the request is cancelled.

An output with 20 likely tokens takes about 3 kB of memory. A reader that does not read would
otherwise collect outputs until the context is full.
"""

MAX_FAILURES = 16
"""Number of consecutive failed steps after which the engine is closed."""


@dataclass(eq=False)
class _Stream:
    """The queue that passes the outputs of a request from the engine's thread to the event loop.

    Attributes:
        outputs: the outputs of the request, followed by an error if the request fails.
        request: the request in the engine; None until the engine's thread has added it.
        is_full: True once the request was cancelled because too many outputs are unread.
    """

    outputs: asyncio.Queue[Output | RuntimeError] = field(default_factory=asyncio.Queue)
    request: RequestState | None = None
    is_full: bool = False


_Call = Callable[[Engine], None]
"""A function that the engine's thread calls between two steps."""


class AsyncEngine:
    """An `Engine` for asyncio, which computes in a thread of its own.

    The thread loads the model and computes every step, because MLX's streams belong to threads.
    Methods of this class queue their calls for the thread, which runs the calls between two steps.
    The event loop never waits for a step.
    """

    def __init__(
        self, make: Callable[[], Engine], failing: Callable[[], None] | None = None
    ) -> None:
        """Store the arguments; `start` loads the model.

        Args:
            make: a function that makes the engine. The engine's thread calls the function.
            failing: a callback that the engine's thread calls after a failure of the engine, before
                the requests fail. The callback can call `fail` with a better reason.
        """
        self._make = make
        self._failing = failing
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        # Changed by the engine's thread alone. `_end` reads it in the event loop.
        self._streams: dict[RequestState, _Stream] = {}
        self._pending: set[Callable[[BaseException], None]] = set()  # fail the waiting calls
        self._closed: str | None = None
        self._ended = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._in_progress = 0
        self._engine: Engine | None = None
        self._thread: Thread | None = None

    async def start(self) -> None:
        """Start the thread, and wait until the engine is made. Errors of `make` are raised here.

        Raises:
            RuntimeError: if the engine was started or closed before.
        """
        if self._thread is not None or self._closed is not None:
            raise RuntimeError("start: expected one call before `close`: make another AsyncEngine")
        ready: Future[None] = Future()
        ready.set_running_or_notify_cancel()  # the thread sets it, even if `start` is cancelled
        self._loop = asyncio.get_running_loop()
        # A daemon thread, so that an interrupted process does not wait for the end of a step.
        self._thread = Thread(target=self._run_thread, args=(ready,), name="engine", daemon=True)
        self._thread.start()
        await asyncio.wrap_future(ready)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model. Any thread may use it."""
        return self._started.tokenizer

    @property
    def config(self) -> QwenConfig:
        """The architecture of the model."""
        return self._started.model.config

    @property
    def settings(self) -> EngineSettings:
        """The settings of the engine."""
        return self._started.settings

    @property
    def max_requests(self) -> int:
        """The most requests that wait or run at a time."""
        return self._started.max_requests

    @property
    def stats(self) -> EngineStats:
        """The state of the engine and counts since it was made. A step may be in progress."""
        return self._started.stats

    @property
    def closed(self) -> str | None:
        """The reason why the engine accepts no requests; None while it is open or still loading."""
        return self._closed

    def check(self, request: Request) -> None:
        """Raise RequestError if a request is too long or has unknown tokens, before it is queued.

        Any thread may call this.
        """
        self._started.request_factory.check(request)

    async def ended(self) -> None:
        """Wait until the engine computes no more steps: after `close`, `fail`, or a failure."""
        await self._ended.wait()

    async def stream(self, request: Request) -> AsyncGenerator[Output, None]:
        """Queue a request, and yield each output when it is computed.

        Closing the generator, or cancelling the task that waits for it, cancels the request. The
        pages of the request are freed before the next step.

        Raises:
            RequestError: if the request can never be served, or if its grammar is not valid or
                takes too long to compile.
            RequestFailedError: if the steps that computed the request failed.
            GrammarLimitError: if the request's grammar was given up.
            UnreadOutputError: after `MAX_UNREAD_OUTPUTS` outputs that were not read in time.
            EngineFullError: for the reasons that `Engine.add` names, or if a full queue drops the
                request in favor of another tenant.
            EngineClosedError: if the engine is closed, or fails before the request has ended.
            RuntimeError: in another event loop than that of `start`.
        """
        self._refuse_if_closed()
        stream = _Stream()
        self._in_progress += 1
        self._idle.clear()
        try:
            grammar = await self._compiled(request)
            await self._call(lambda engine: self._add(engine, request, grammar, stream))
            reason = None
            while reason is None:
                output = await stream.outputs.get()
                if isinstance(output, RuntimeError):
                    raise output
                reason = output.finish_reason
                yield output
        finally:
            # The thread runs calls in order: if the request is ever added, it is added before this
            # call runs.
            self._calls.put(lambda engine: self._remove(engine, stream))
            self._in_progress -= 1
            if not self._in_progress:
                self._idle.set()

    async def embed(
        self,
        tokens: Sequence[int],
        *,
        tenant: str = "",
        weight: float = 1.0,
        cache_salt: str = "",
    ) -> list[float]:
        """Return the embedding of a text. The arguments are those of `Request`.

        Raises:
            RequestError, RequestFailedError, EngineFullError, EngineClosedError: see `stream`.
        """
        request = Request(
            tokens, tenant=tenant, weight=weight, cache_salt=cache_salt, embedding=True
        )
        async with aclosing(self.stream(request)) as outputs:
            output = await anext(outputs)
        assert output.embedding is not None
        return output.embedding

    async def drain(self) -> None:
        """Refuse new requests from now on, and wait until all requests in progress have ended."""
        self._closed = self._closed or "the server is shutting down"
        await self._idle.wait()

    async def close(self) -> None:
        """Fail requests in progress, and wait until the engine's thread has ended.

        If the settings have a `prefix_cache_path`, the thread saves the prefix cache to that file.
        """
        self._closed = self._closed or "the server is shutting down"
        self._calls.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self._end(None)  # for a thread that did not start, or made no engine

    def fail(self, reason: str) -> None:
        """Fail all requests without waiting for the engine's thread.

        Any thread may call this method after `start`. The engine's thread is abandoned, because a
        step that needs another process waits forever if that process has ended.

        Args:
            reason: the message of the error that all present and later requests get.
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
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("stream: expected the event loop of `start`: call both in one loop")

    async def _compiled(self, request: Request) -> CompiledGrammar | None:
        """Wait until the grammar of a request is compiled. Other requests go on meanwhile."""
        if request.grammar is None:
            return None
        compiling = self._started.grammars.submit(request.grammar, request.tenant)
        try:
            return await asyncio.wait_for(self._result(compiling), MAX_SECONDS)
        except TimeoutError:
            raise too_slow(request.grammar) from None

    async def _call(self, function: Callable[[Engine], T]) -> T:
        """Call a function in the engine's thread, between two steps; return its result."""
        answer: Future[T] = Future()

        def run(engine: Engine) -> None:
            if answer.done():  # the caller has given up, so the call would be in vain
                return
            with suppress(InvalidStateError):  # the caller has given up meanwhile
                try:
                    result = function(engine)
                except Exception as error:  # pass every error on to the caller
                    answer.set_exception(for_client(error))
                else:
                    answer.set_result(result)

        self._calls.put(run)
        return await self._result(answer)

    async def _result(self, future: Future[T]) -> T:
        """Wait for the result of another thread; fail if the engine ends before."""
        if self._ended.is_set():  # while a grammar was compiled
            raise EngineClosedError(self._closed)
        self._pending.add(future.set_exception)
        try:
            return await asyncio.wrap_future(future)
        finally:
            self._pending.discard(future.set_exception)

    def _run_thread(self, ready: Future[None]) -> None:
        """Make the engine, then run queued calls and steps in turn: the body of the thread."""
        try:
            self._engine = self._make()
            self._engine.grammars.wait_for_vocabulary()
        except BaseException as error:
            ready.set_exception(error)
            return
        ready.set_result(None)
        reason = None
        try:
            while reason is None and self._run_calls(self._engine):
                self._deliver(self._engine, self._engine.step())
                if self._engine.failures >= MAX_FAILURES:
                    reason = f"the engine has failed: {MAX_FAILURES} steps failed in succession"
            if reason is None and self._engine.settings.prefix_cache_path is not None:
                self._engine.save_prefixes()
        except BaseException:  # a panic of llguidance is no Exception
            _log.exception("the engine has failed")
            if self._failing is not None:
                self._failing()
            # The text of the error may quote requests. Callers show the reason to any client.
            reason = "the engine has failed: its log says why"
        with suppress(RuntimeError):  # the event loop ended without `close`
            self._loop.call_soon_threadsafe(self._end, reason)

    def _run_calls(self, engine: Engine) -> bool:
        """Run all queued calls. While the engine has no request, wait for more calls.

        Returns:
            True if there is a step to compute, False if `close` was called.
        """
        timeout: float | None = IDLE_SECONDS
        while True:
            try:
                call = self._calls.get(block=not engine.has_work, timeout=timeout)
            except Empty:
                if engine.has_work:
                    return True
                # Pages stay allocated. The next step allocates its other buffers again, which takes
                # little time.
                release_free_memory()
                timeout = None  # nothing more to free: wait for a call without limit
                continue
            if call is None:
                return False
            call(engine)

    def _deliver(self, engine: Engine, outputs: list[tuple[RequestState, Output]]) -> None:
        """Pass outputs and failures of requests to the event loop, all in one call."""
        pairs: list[tuple[_Stream, Output | RuntimeError]] = [
            (self._streams[request], output) for request, output in outputs
        ]
        for request in engine.take_failed():
            assert request.error is not None
            pairs.append((self._streams[request], for_client(request.error)))
        if pairs:
            self._loop.call_soon_threadsafe(self._put, pairs)

    def _put(self, pairs: list[tuple[_Stream, Output | RuntimeError]]) -> None:
        """Put outputs and failures into the queues of their streams. Runs in the event loop."""
        for stream, output in pairs:
            unread = stream.outputs.qsize()
            if stream.is_full:
                continue
            if unread >= MAX_UNREAD_OUTPUTS and isinstance(output, Output):
                stream.is_full = True
                stream.outputs.put_nowait(UnreadOutputError(unread))
                self._calls.put(partial(self._cancel, stream))
            else:
                stream.outputs.put_nowait(output)

    def _add(
        self,
        engine: Engine,
        request: Request,
        grammar: CompiledGrammar | None,
        stream: _Stream,
    ) -> None:
        stream.request = engine.add(request, grammar)
        self._streams[stream.request] = stream
        self._deliver(engine, [])  # a request that left the queue for this one

    def _cancel(self, stream: _Stream, engine: Engine) -> None:
        if stream.request is not None:
            engine.cancel(stream.request)

    def _remove(self, engine: Engine, stream: _Stream) -> None:
        if stream.request is not None:
            engine.cancel(stream.request)
            del self._streams[stream.request]

    def _end(self, reason: str | None) -> None:
        """Fail all streams and all waiting calls. Runs in the event loop after the last step.

        Only the first call has an effect, so that the first reason is kept. Without a reason, the
        reason of `drain` or `close` is used.
        """
        if self._ended.is_set():
            return
        self._ended.set()
        self._closed = reason or self._closed or "the engine has ended"
        error = EngineClosedError(self._closed)
        # After `fail` the engine's thread may still run. It cannot change the dictionary during
        # `list`, which runs no Python code. It may add a stream afterwards. The request of such a
        # stream still waits for `_add`, so the calls of `give_up` fail it.
        for stream in list(self._streams.values()):
            stream.outputs.put_nowait(error)
        for give_up in list(self._pending):
            with suppress(InvalidStateError):  # it has a result, which is on its way to the loop
                give_up(error)
