"""The thread that compiles grammars, for all requests and tenants."""

import threading
import time
from collections import OrderedDict, deque
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from tinyllm_engine.errors import EngineClosedError, EngineFullError, RequestError
from tinyllm_engine.grammar.compiler import CompiledGrammar, GrammarCompiler
from tinyllm_engine.grammar.constraint import Lexer
from tinyllm_engine.grammar.grammar import Grammar

MAX_SECONDS = 10.0
"""The most seconds that a caller waits for a grammar, its time in the queue included."""

MAX_QUEUED = 16
"""The most grammars of one tenant in the queue. Equal grammars count once."""

_STACK_BYTES = 512 << 20
"""The stack of the thread. llguidance recurses as deep as a grammar is long: a chain of 1,000
references needs the 8 MiB of an ordinary thread. Pages of the stack that are never used cost
nothing."""

MAX_REQUESTS = 32
"""The number of requests after which a cached grammar is compiled anew. Requests that begin
together have no tokens yet, so `Lexer.num_tokens` alone would let any number share a lexer."""

_MAX_CACHED_SECONDS = 2.0
"""Seconds of compiling that the cached grammars took together. They are the measure of memory,
which llguidance does not tell: a grammar holds at most 180 MB for each second of its compiler."""

_SECONDS_FOR_STATES = 0.1
"""Seconds for the memory of the lexer's states, in addition to those of the compiler. 20,000 states
take 16 MB, and a grammar makes them after it is compiled."""

_MAX_HELD_SECONDS = 4.0
_MAX_HELD_SECONDS_OF_TENANT = 2.0
"""Seconds of compiling that the grammars in memory took together: those of requests that wait or
run, and those in the cache. No grammar is compiled while either limit is reached, so that the
memory exceeds it by one grammar at most."""

_Key = tuple[str, Grammar]
"""A tenant and its grammar."""

_stack_size = threading.Lock()  # `threading.stack_size` is a setting of the whole process


@dataclass(eq=False)
class _Job:
    """A grammar to compile, and the callers that wait for it."""

    key: _Key
    waiters: list[Future[CompiledGrammar]] = field(default_factory=list)

    @property
    def is_wanted(self) -> bool:
        """True unless all callers have given up."""
        return any(not each.cancelled() for each in self.waiters)


@dataclass(eq=False)
class _Cached:
    """A compiled grammar in the cache.

    Attributes:
        compiled: the grammar.
        seconds: its seconds for the limit of the cache.
        num_requests: the number of requests that got it.
    """

    compiled: CompiledGrammar
    seconds: float
    num_requests: int

    @property
    def is_spent(self) -> bool:
        """True if later requests need a copy with a new lexer."""
        return self.num_requests >= MAX_REQUESTS or self.compiled.lexer.is_spent


class GrammarWorker:
    """Compiles grammars in a thread of its own with a large stack, one at a time.

    The tenants take turns. Equal grammars are compiled once while they are queued, and the latest
    are cached for a number of requests and tokens. Grammars whose callers have all given up are not
    compiled. The compiler cannot be interrupted: `limits` bounds its time. It runs without Python's
    lock (GIL), so other threads go on meanwhile.
    """

    def __init__(self, compiler: GrammarCompiler) -> None:
        """Start the thread, which reads the vocabulary first."""
        self._compiler = compiler
        self._changed = threading.Condition()
        self._queues: OrderedDict[str, deque[_Job]] = OrderedDict()
        self._jobs: dict[_Key, _Job] = {}  # queued or being compiled
        self._cache: OrderedDict[_Key, _Cached] = OrderedDict()
        # The tenant and the compiler's seconds of each grammar in memory.
        self._held: WeakKeyDictionary[Lexer, tuple[str, float]] = WeakKeyDictionary()
        self._closed = False
        self._vocabulary: Future[None] = Future()
        with _stack_size:
            before = threading.stack_size(_STACK_BYTES)
            try:
                # A daemon, so that the end of the process does not wait for a compiler.
                threading.Thread(target=self._run, name="grammars", daemon=True).start()
            finally:
                threading.stack_size(before)

    def wait_for_vocabulary(self) -> None:
        """Wait until the vocabulary is read, and raise an error of reading it.

        llguidance sorts the vocabulary while it holds Python's lock, about a second for 152,000
        tokens. A server waits before it accepts requests, which would otherwise stand still.
        """
        self._vocabulary.result()

    def submit(self, grammar: Grammar, tenant: str = "") -> Future[CompiledGrammar]:
        """Queue a grammar. Cancel the result to give it up.

        Returns:
            A future of the compiled grammar, of a RequestError if the grammar is not valid, or of
            an EngineFullError if the grammars in memory have reached a limit.

        Raises:
            EngineFullError: if the tenant has `MAX_QUEUED` other grammars in the queue.
            EngineClosedError: after `close`.
        """
        # Tenants share no grammars, or one could learn from the time what the others ask.
        key = tenant, grammar
        future: Future[CompiledGrammar] = Future()
        with self._changed:
            if self._closed:
                raise EngineClosedError("the engine has ended, and compiles no grammars")
            cached = self._cache.pop(key, None)
            if cached is not None and not cached.is_spent:
                cached.num_requests += 1
                self._cache[key] = cached  # as the latest
                future.set_result(cached.compiled)
                return future
            job = self._jobs.get(key)
            if job is None:
                job = _Job(key)
                queue = self._queues.setdefault(tenant, deque())
                if len(queue) >= MAX_QUEUED:
                    self._drop_unwanted(queue)
                if len(queue) >= MAX_QUEUED:
                    raise EngineFullError(MAX_QUEUED, "grammars")
                queue.append(job)
                self._jobs[key] = job
                self._changed.notify()
            job.waiters.append(future)
        return future

    def compile(self, grammar: Grammar, tenant: str = "") -> CompiledGrammar:
        """Compile a grammar, and wait for the result.

        Raises:
            RequestError: if the grammar is not valid, or takes more than `MAX_SECONDS`.
            EngineFullError: if the tenant has `MAX_QUEUED` other grammars in the queue, or the
                grammars in memory have reached a limit.
            EngineClosedError: after `close`.
        """
        future = self.submit(grammar, tenant)
        try:
            return future.result(MAX_SECONDS)
        except FutureTimeoutError:
            future.cancel()
            raise too_slow(grammar) from None

    def close(self) -> None:
        """Cancel all callers, and end the thread once the grammar in progress is compiled."""
        with self._changed:
            self._closed = True
            for job in self._jobs.values():
                for waiter in job.waiters:
                    waiter.cancel()
            self._changed.notify()

    def _drop_unwanted(self, queue: deque[_Job]) -> None:
        """Remove the grammars whose callers have all given up."""
        wanted = [job for job in queue if job.is_wanted]
        for job in queue:
            if not job.is_wanted:
                del self._jobs[job.key]
        queue.clear()
        queue.extend(wanted)

    def _run(self) -> None:
        # A panic of llguidance is a BaseException.
        try:
            self._compiler.read_vocabulary()
        except BaseException as raised:  # pass every error on to the caller
            self._vocabulary.set_exception(raised)
        else:
            self._vocabulary.set_result(None)
        while (job := self._next()) is not None:
            error: BaseException | None = None
            compiled = None
            started = time.thread_time()
            try:
                self._refuse_if_full(job.key[0])
                compiled = self._compiler.compile(job.key[1])
            except ValueError as raised:
                error = RequestError(str(raised))
            except BaseException as raised:  # pass every error on to the callers
                error = raised
            self._finish(job, compiled, error, time.thread_time() - started)
            del job, compiled, error  # `_next` may wait for long, and this would hold the grammar

    def _refuse_if_full(self, tenant: str) -> None:
        """Free the cache as far as the limits on grammars in memory need it.

        Raises:
            EngineFullError: if the grammars of requests alone reach a limit.
        """
        with self._changed:
            while True:
                held = list(self._held.values())
                used = [seconds for owner, seconds in held if owner == tenant]
                if sum(used) >= _MAX_HELD_SECONDS_OF_TENANT:
                    keys = [key for key in self._cache if key[0] == tenant]
                elif sum(seconds for _, seconds in held) >= _MAX_HELD_SECONDS:
                    keys = list(self._cache)
                else:
                    return
                if not keys:
                    raise EngineFullError(len(held), "grammars", "in use")
                del self._cache[keys[0]]

    def _next(self) -> _Job | None:
        """Wait for the next job of the tenants in turn; None after `close`."""
        with self._changed:
            while not self._closed:
                while self._queues:
                    tenant, queue = self._queues.popitem(last=False)
                    job = queue.popleft()
                    if queue:
                        self._queues[tenant] = queue  # behind all other tenants
                    if job.is_wanted:
                        return job
                    del self._jobs[job.key]
                self._changed.wait()
        return None

    def _finish(
        self,
        job: _Job,
        compiled: CompiledGrammar | None,
        error: BaseException | None,
        seconds: float,
    ) -> None:
        with self._changed:
            del self._jobs[job.key]
            if compiled is not None:
                self._held[compiled.lexer] = job.key[0], seconds
                entry = _Cached(compiled, seconds + _SECONDS_FOR_STATES, len(job.waiters))
                # A slower one would evict all others, and then itself.
                if entry.seconds <= _MAX_CACHED_SECONDS:
                    self._cache[job.key] = entry
                    self._shrink()
        for waiter in job.waiters:
            try:
                if compiled is not None:
                    waiter.set_result(compiled)
                else:
                    waiter.set_exception(error)
            except InvalidStateError:  # the caller has given up
                pass

    def _shrink(self) -> None:
        """Drop spent grammars, and those used longest ago until the limit of the cache holds."""
        for key in [key for key, cached in self._cache.items() if cached.is_spent]:
            del self._cache[key]
        total = sum(cached.seconds for cached in self._cache.values())
        while total > _MAX_CACHED_SECONDS:
            _, cached = self._cache.popitem(last=False)
            total -= cached.seconds


def too_slow(grammar: Grammar) -> RequestError:
    """Return the error of a grammar that was not compiled within `MAX_SECONDS`."""
    return RequestError(
        f"{grammar.name}: expected one that compiles within {MAX_SECONDS:.0f} s, got none: "
        "simplify it, or send it again later"
    )
