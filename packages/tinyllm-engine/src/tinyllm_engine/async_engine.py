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

from tinyllm_engine.engine import Engine
from tinyllm_engine.handle import Handle
from tinyllm_engine.malloc_trim import release_free_memory
from tinyllm_engine.output import Output
from tinyllm_engine.request import Request
from tinyllm_engine.stats import EngineStats

T = TypeVar("T")

_log = logging.getLogger(__name__)

IDLE_SECONDS = 1.0
"""Silence after which memory goes back that the next step would have used again."""


class EngineClosedError(RuntimeError):
    """The engine takes no requests: it is closed, or it has failed; the message says which."""


@dataclass(eq=False)
class _Stream:
    """The way of a request's tokens from the owner thread to the event loop."""

    outputs: asyncio.Queue[Output | EngineClosedError] = field(default_factory=asyncio.Queue)
    handle: Handle | None = None


_Errand = Callable[[Engine], None]
"""Something to be done between two steps."""


class AsyncEngine:
    """An `Engine` whose tokens are awaited.

    One thread loads the model, computes every step and owns all of it, since MLX's streams belong
    to threads. Between two steps it does what was asked of it meanwhile. The event loop is never
    kept waiting.
    """

    def __init__(
        self, make: Callable[[], Engine], failing: Callable[[], None] | None = None
    ) -> None:
        """Prepare; `start` begins.

        Args:
            make: makes the engine, in the thread that will own it.
            failing: called there when a step has failed, before anybody is told: whoever knows
                better why that is can call `fail` first.
        """
        self._make = make
        self._failing = failing
        self._errands: SimpleQueue[_Errand | None] = SimpleQueue()
        self._streams: dict[Handle, _Stream] = {}  # the owner thread's
        self._askers: set[Callable[[BaseException], None]] = set()
        self._closed: str | None = None
        self._ended = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._under_way = 0
        self._embedding = asyncio.Lock()
        self._engine: Engine | None = None
        self._thread: Thread | None = None

    async def start(self) -> None:
        """Load the model; raises what loading raises."""
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
        return self._made.tokenizer

    @property
    def config(self) -> QwenConfig:
        """The model's architecture."""
        return self._made.model.config

    @property
    def stats(self) -> EngineStats:
        """How the engine stands: counts, read between or during steps."""
        return self._made.stats

    @property
    def closed(self) -> str | None:
        """Why it takes no requests, after a failure too; None while it does, or is loading."""
        return self._closed

    async def ended(self) -> None:
        """Wait until it computes no more: after `close`, after `fail`, or because a step failed."""
        await self._ended.wait()

    async def stream(self, request: Request) -> AsyncGenerator[Output, None]:
        """Give a request's tokens as they come.

        Closing the generator, or cancelling the task that waits for it, takes the request back:
        its pages are free before the next step.

        Raises:
            RequestError: if it can never be served.
            EngineFullError: if too many wait.
            EngineClosedError: if the engine is closed, or fails in the middle.
        """
        self._refuse_if_closed()
        stream = _Stream()
        self._under_way += 1
        self._idle.clear()
        try:
            await self._ask(lambda engine: self._begin(engine, request, stream))
            reason = None
            while reason is None:
                output = await stream.outputs.get()
                if isinstance(output, EngineClosedError):
                    raise output
                reason = output.finish_reason
                yield output
        finally:
            # Errands are done in their order: by then the request was taken, if it ever is.
            self._errands.put(lambda engine: self._leave(engine, stream))
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def embed(self, tokens: Sequence[int]) -> list[float]:
        """The text's direction in the model's space: see `Embedding`.

        It is computed as a long prompt is, a chunk between two steps, and one text after the other:
        those who are being answered wait no longer for many than for one, and memory holds the keys
        and values of one.

        Raises:
            RequestError: if the text is empty or too long.
            EngineClosedError: if the engine is closed.
        """
        self._refuse_if_closed()
        embedding = await self._ask(lambda engine: engine.embedding(tokens))
        async with self._embedding:
            direction = None
            while direction is None:
                direction = await self._ask(lambda _: embedding.advance())
        return direction

    async def drain(self) -> None:
        """Refuse new requests, and wait until those under way have ended."""
        self._closed = self._closed or "the server is shutting down"
        await self._idle.wait()

    async def close(self) -> None:
        """End at once: requests under way fail, and the thread with the model ends.

        If the settings have a `prefix_path`, the prefix cache is saved there first.
        """
        self._closed = self._closed or "the server is shutting down"
        self._errands.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def fail(self, reason: str) -> None:
        """End at once although a step may never end; to be called from any thread, once started.

        Requests under way fail, and the thread with the model is left to itself: a step that needs
        another process waits for ever when that process is gone.

        Args:
            reason: what they are told, and all who come later.
        """
        self._loop.call_soon_threadsafe(self._give_up, reason)

    @property
    def _made(self) -> Engine:
        if self._engine is None:
            raise EngineClosedError("the engine was not started")
        return self._engine

    def _refuse_if_closed(self) -> None:
        if self._closed is not None or self._engine is None:
            raise EngineClosedError(self._closed or "the engine was not started")

    async def _ask(self, errand: Callable[[Engine], T]) -> T:
        """Have something done between two steps, and wait for what comes of it."""
        answer: asyncio.Future[T] = self._loop.create_future()

        def run(engine: Engine) -> None:
            try:
                result = errand(engine)
            except Exception as error:  # whatever it is, it is the asker's
                self._loop.call_soon_threadsafe(_fail, answer, error)
            else:
                self._loop.call_soon_threadsafe(_resolve, answer, result)

        give_up = partial(_fail, answer)
        self._askers.add(give_up)
        self._errands.put(run)
        try:
            return await answer
        finally:
            self._askers.discard(give_up)

    def _own(self, ready: asyncio.Future[None]) -> None:
        """The owner thread: load, then errands and steps in turn."""
        try:
            self._engine = self._make()
        except BaseException as error:
            self._loop.call_soon_threadsafe(_fail, ready, error)
            return
        self._loop.call_soon_threadsafe(_resolve, ready, None)
        reason = None
        try:
            while self._do_errands(self._engine):
                self._deliver(self._engine.step())
            if self._engine.settings.prefix_path is not None:
                self._engine.save_prefixes()
        except Exception as error:
            _log.exception("a step has failed")
            if self._failing is not None:
                self._failing()
            reason = f"the engine has failed: {error}"
        self._loop.call_soon_threadsafe(self._give_up, reason)

    def _do_errands(self, engine: Engine) -> bool:
        """Do all that was asked, and wait for more while there is nothing to compute.

        Returns:
            Whether to go on.
        """
        patience: float | None = IDLE_SECONDS
        while True:
            try:
                errand = self._errands.get(block=not engine.has_work, timeout=patience)
            except Empty:
                if engine.has_work:
                    return True
                release_free_memory()  # the pages stay; the next step takes a little longer
                patience = None
                continue
            if errand is None:
                return False
            errand(engine)

    def _deliver(self, step: list[tuple[Handle, Output]]) -> None:
        """Hand the tokens of a step to the event loop, at one go."""
        pairs = [(self._streams[handle], output) for handle, output in step]
        self._loop.call_soon_threadsafe(_put, pairs)

    def _begin(self, engine: Engine, request: Request, stream: _Stream) -> None:
        stream.handle = engine.add(request)
        self._streams[stream.handle] = stream

    def _leave(self, engine: Engine, stream: _Stream) -> None:
        if stream.handle is not None:
            engine.cancel(stream.handle)
            del self._streams[stream.handle]

    def _give_up(self, reason: str | None) -> None:
        """In the event loop, when no step comes any more: nobody waits any longer.

        The first failure is what is told, and a failure before an end that was asked for.
        """
        if self._ended.is_set():
            return
        self._ended.set()
        self._closed = reason or self._closed or "the engine has ended"
        error = EngineClosedError(self._closed)
        for stream in list(self._streams.values()):  # the owner thread may still be there
            stream.outputs.put_nowait(error)
        for give_up in self._askers:
            give_up(error)


def _put(pairs: list[tuple[_Stream, Output]]) -> None:
    for stream, output in pairs:
        stream.outputs.put_nowait(output)


def _resolve(answer: asyncio.Future[T], result: T) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[T], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
