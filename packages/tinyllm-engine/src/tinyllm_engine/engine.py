"""The engine: a loop of propose, schedule, prefill, decode and update, for many requests."""

import logging
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from tinyllm_qwen import Tokenizer
from tinyllm_qwen.language_model import LanguageModel

from tinyllm_engine.config import EngineSettings
from tinyllm_engine.errors import EngineFullError, GrammarLimitError, RequestFailedError
from tinyllm_engine.grammar.compiler import CompiledGrammar, GrammarCompiler
from tinyllm_engine.grammar.worker import GrammarWorker
from tinyllm_engine.head_runner import make_head_runner
from tinyllm_engine.kv.block_manager import BlockManager
from tinyllm_engine.kv.page_pool import PagePool
from tinyllm_engine.kv.prefix_store import PrefixStore, make_prefix_store
from tinyllm_engine.new_request import RequestFactory, check_state, check_type
from tinyllm_engine.output import EngineStats, Output, RequestFinishReason, SampledToken
from tinyllm_engine.recovery import Recovery, delayed_interrupt
from tinyllm_engine.request import Request, RequestState
from tinyllm_engine.runner import Runner
from tinyllm_engine.schedule.prefill_budget import PrefillBudget
from tinyllm_engine.schedule.scheduler import Scheduler
from tinyllm_engine.schedule.state_slots import make_state_slots
from tinyllm_engine.schedule.step import Step
from tinyllm_engine.speculative.drafter import propose_drafts, record_acceptance
from tinyllm_engine.speculative.make_drafter import make_drafter
from tinyllm_engine.stats import Counts, engine_stats

_log = logging.getLogger(__name__)


class Engine:
    """Continues many prompts at once, one step at a time (continuous batching, Yu et al. 2022).

    Requests can be added and cancelled between any two steps. All calls must come from the thread
    that loaded the model, because MLX's streams belong to threads. While there are requests, calls
    from another thread raise RuntimeError. `AsyncEngine` runs an engine in its own thread.

        engine = Engine(*load("pico", ops=tinyllm_kernels.BackendChoice.choose().ops))
        state = engine.add(Request(engine.tokenizer.encode("what does rmsnorm do?")))
        for output in engine.run(state):
            print(output.text, end="")

    Attributes:
        model: the model.
        tokenizer: the tokenizer of the model.
        settings: limits and options.
        grammars: the compiler of the requests' grammars.
        request_factory: the checks of new requests, which any thread may use, and their states.
        failures: the number of failed steps since the last successful step.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        settings: EngineSettings = EngineSettings(),
        *,
        draft_model: LanguageModel | None = None,
    ) -> None:
        """Allocate the memory of all requests, and load the prefix cache if there is a file.

        Args:
            model: the model. If it has a draft head, the head proposes draft tokens.
            tokenizer: the tokenizer of the model.
            settings: limits and options.
            draft_model: a smaller model with the same tokenizer, which proposes draft tokens. None
                for draft tokens from the draft head, or from the text itself (prompt lookup).

        Raises:
            ValueError: if the memory is too little for one request, a setting or the draft model
                does not fit the model, or an argument has another type.
        """
        check_type("tokenizer", tokenizer, Tokenizer, "the Tokenizer that `load` returned")
        check_type("settings", settings, EngineSettings, "EngineSettings")
        self.model = model
        self.tokenizer = tokenizer
        self.settings = settings
        pool = self._pool = PagePool(model, settings, draft_model)
        manager = BlockManager(pool.num_pages, settings.page_size, pool.max_cached_pages)
        self._block_manager = manager
        self._state_slots = make_state_slots(pool.plan, settings)
        caching = settings.enable_prefix_caching
        self._scheduler = Scheduler(
            manager, settings.max_num_seqs, self._state_slots, enable_prefix_caching=caching
        )
        head = make_head_runner(model, pool, settings.page_size)
        self._drafter = make_drafter(
            settings, head, tokenizer, pool, self._scheduler.reserve, draft_model
        )
        self._runner = Runner(
            model, pool.caches, pool.num_pages, settings.page_size, pool.num_slots, head
        )
        self._recovery = Recovery(
            self._scheduler, self._drafter, pool, is_possible=model.num_ranks == 1
        )
        self._budget = PrefillBudget(settings, model.config.experts)
        self.grammars = GrammarWorker(GrammarCompiler(tokenizer, model.config.vocab_size))
        weakref.finalize(self, self.grammars.close)
        self.request_factory = RequestFactory(model, tokenizer, manager, self.grammars, settings)
        self._lap_started = 0.0
        if settings.prefix_cache_path is not None:
            self._prefixes.load(settings.prefix_cache_path)
        self._failed: list[RequestState] = []
        self._unreturned: list[tuple[RequestState, Output]] = []  # outputs for the next `step`
        self.failures = 0
        self._added = 0  # requests
        self._thread = threading.get_ident()  # the thread of the requests
        self._counts = Counts()

    @property
    def has_work(self) -> bool:
        """True while a request waits or runs, or an output is not returned yet."""
        return self._scheduler.has_requests or bool(self._unreturned)

    @property
    def max_requests(self) -> int:
        """The most requests that wait or run at a time."""
        return self.settings.max_waiting + self._scheduler.max_num_seqs

    @property
    def stats(self) -> EngineStats:
        """The state of the engine, and counts since it was made."""
        return engine_stats(self._scheduler, self._counts)

    def add(self, request: Request, grammar: CompiledGrammar | None = None) -> RequestState:
        """Put a request into the queue. Later steps compute its tokens.

        Args:
            request: the request.
            grammar: the compiled form of the request's grammar, if the caller has it. Otherwise the
                call waits for the compiler.

        Returns:
            The state of the request, with which the caller runs or cancels it.

        Raises:
            RequestError: if this engine can never serve the request, or if its grammar is not valid
                or takes too long to compile. `PromptTooLongError` is a subclass.
            EngineFullError: if the queue of requests, the tenant's queue of grammars, or the memory
                for grammars is full. If another tenant has more requests in the queue, its last
                request fails with this error instead.
        """
        self._check_thread()
        self._recovery.restart_if_interrupted()
        self.request_factory.check(request)
        displaced = self._scheduler.displaced_by(request.tenant, self.settings.max_waiting)
        added = self.request_factory.make(request, self._added, grammar)
        if displaced is not None:
            remedy = "add it again after step(), or raise EngineSettings.max_waiting"
            self._fail(displaced, EngineFullError(self._scheduler.waiting, remedy=remedy))
        self._added += 1
        self._scheduler.add(added)
        return added

    def cancel(self, request: RequestState) -> None:
        """End a request, and free its pages at once. A finished request is not changed.

        Raises:
            ValueError: if the argument is not a `RequestState`, as `add` returns it.
        """
        check_state(request)
        self._check_thread()
        with delayed_interrupt():
            self._recovery.restart_if_interrupted()
            if request.finish_reason is None:
                self._finish(request, "cancelled")

    def step(self) -> list[tuple[RequestState, Output]]:
        """Prefill some prompt tokens, and compute the next tokens of each request that decodes.

        If the computation fails, the contents of all pages are lost. The running requests are
        queued again and keep their tokens. Some steps then compute one of them alone. A request
        that fails twice alone without a new token in between ends with the finish reason "error"
        and no further output.

        Ctrl-C may come at any time. The requests are then queued again too, and the interrupt is
        raised to the caller, who may call `step` again: outputs that were complete are returned
        then. If a second Ctrl-C comes before the requests are queued, the next call queues them.

        Returns:
            One pair of request and output for each chosen token. Tokens of one request are in
            their order in the text.
        """
        self._check_thread()
        self._recovery.run_step(self._step)
        outputs, self._unreturned = self._unreturned, []
        return outputs

    def _step(self) -> None:
        if self._unreturned:  # Ctrl-C came while they were made
            return
        self._failed.clear()
        self._lap()
        try:
            drafting = self._propose()
            draft_seconds = self._lap() if drafting else 0.0
            step = self._scheduler.schedule(self._budget.tokens, self._budget.tokens_alone)
            self._scheduler.charge_requests(drafting, draft_seconds)
            scheduling = self._lap()
            self._prepare(step)  # counts as prefill: a draft model prefills the prompts here
            sampled = [*self._prefill(step), *self._decode(step)]
        except Exception:
            if not (self._recovery.is_possible and self._scheduler.running):
                raise
            _log.exception("a step failed")
        else:
            with delayed_interrupt():
                self._unreturned = self._update(step, sampled)
                requests = [chunk.request for chunk in (*step.prefill, *step.decode)]
                self._scheduler.charge_requests(requests, scheduling + self._lap())
            return
        # Recover only after the except block: until then, the traceback refers to the old pages.
        self._handle_failed_step()

    def run(self, request: RequestState) -> Iterator[Output]:
        """Compute steps until a request has ended, and yield its outputs.

        The steps also compute other requests. The outputs of these are queued in
        `RequestState.outputs` until `run` is called for them. A request that the caller gives up
        holds its pages until `cancel`.

        Raises:
            RequestFailedError: if the steps that computed the request failed.
            GrammarLimitError: if the request's grammar was given up.
            EngineFullError: if a full queue dropped the request in favor of another tenant.
            ValueError: if the request belongs to another engine, or is not a `RequestState`.
        """
        check_state(request)
        if request.finish_reason is None and not self._scheduler.has(request):
            raise ValueError("request: expected one of this engine, got one of another engine")
        while True:
            while request.outputs:
                yield request.outputs.popleft()
            if request.finish_reason is not None and not self._unreturned:
                break
            try:
                outputs = self.step()
                with delayed_interrupt():
                    for owner, output in outputs:
                        owner.outputs.append(output)
            except BaseException:
                self.cancel(request)  # the caller cannot continue it
                raise
        if request.error is not None:
            raise request.error

    def take_failed(self) -> list[RequestState]:
        """Return the requests that ended with an error since the last call, or the last step."""
        failed, self._failed = self._failed, []
        return failed

    def save_prefixes(self, path: str | Path | None = None) -> int:
        """Write the prefix cache to a file, for the next engine of this model.

        Args:
            path: the file; None for `settings.prefix_cache_path`.

        Returns:
            The number of pages written; 0 if the write failed, with the reason in the log.

        Raises:
            ValueError: if there is no path, or several ranks share the model.
        """
        path = self.settings.prefix_cache_path if path is None else path
        if path is None:
            raise ValueError(
                "path: expected one here or in EngineSettings.prefix_cache_path, got None: give one"
            )
        self._recovery.restart_if_interrupted()
        return self._prefixes.save(Path(path))

    def embed(self, tokens: Sequence[int]) -> list[float]:
        """Return the embedding of a text, E numbers: see `Request.embedding`.

        Raises:
            RequestError: if the text is empty or too long.
            EngineFullError: if the queue is full.
            RequestFailedError: if the steps that computed the text failed.
        """
        (output,) = self.run(self.add(Request(tokens, embedding=True)))
        assert output.embedding is not None
        return output.embedding

    def _check_thread(self) -> None:
        """Raise RuntimeError in another thread than that of the requests and their arrays."""
        if not self.has_work:
            self._thread = threading.get_ident()
        elif self._thread != threading.get_ident():
            raise RuntimeError("expected the thread that added the requests: use AsyncEngine")

    def _propose(self) -> Sequence[RequestState]:
        """Propose draft tokens for the next step; return the requests that they are for."""
        if self._drafter is None:
            return ()
        # Each draft token needs a slot for the recurrent state after it.
        slots = None if self._state_slots is None else self._state_slots.unused
        served = self._scheduler.choose_served()
        return propose_drafts(self._drafter, served, self.settings.num_speculative_tokens, slots)

    def _prepare(self, step: Step) -> None:
        """Prepare the drafter for a step, and copy the shared pages that the step writes to."""
        if self._drafter is not None:
            self._drafter.prepare(step)
        self._runner.copy(step.copies)

    def _prefill(self, step: Step) -> list[list[SampledToken]]:
        """Compute the prompts of a step; return a list for each chunk with samples."""
        if not step.prefill:
            return []
        embeddings = [chunk for chunk in step.prefill if chunk.request.is_embedding]
        for request, embedding in self._runner.embed(embeddings).items():
            request.embedding = embedding
        prompts = [chunk for chunk in step.prefill if not chunk.request.is_embedding]
        scores = self._runner.prefill(prompts)
        seconds = self._lap()
        self._budget.observe(sum(len(chunk.tokens) for chunk in step.prefill), seconds)
        sampled = self._runner.sample(prompts, scores)
        self._scheduler.charge_prefill(step.prefill, seconds + self._lap())
        return sampled

    def _decode(self, step: Step) -> list[list[SampledToken]]:
        """Compute the other tokens of a step; return a list for each chunk with samples."""
        sampled = self._runner.sample(step.decode, self._runner.decode(step.decode))
        self._scheduler.charge_decode(step.decode, self._lap())
        return sampled

    def _update(
        self, step: Step, sampled: list[list[SampledToken]]
    ) -> list[tuple[RequestState, Output]]:
        """Advance all requests of a step; return the outputs of the accepted tokens."""
        self.failures = 0
        outputs: list[tuple[RequestState, Output]] = []
        samples_by_chunk = iter(sampled)
        for chunk in [*step.prefill, *step.decode]:
            request = chunk.request
            if not chunk.num_samples:
                self._scheduler.update(request, chunk.stop)
                if not (request.generates or request.is_prefilling):
                    self._finish(request, "stop" if request.is_embedding else "length")
                    outputs.append((request, request.prompt_output()))
                continue
            num_draft_tokens = len(request.draft_tokens)
            samples = next(samples_by_chunk)
            if request.constraint is not None and request.constraint.error is not None:
                self._fail(request, GrammarLimitError(request.constraint.error))
                continue
            accepted = request.accept(samples)
            if num_draft_tokens:
                record_acceptance(request, num_draft_tokens, len(accepted) - 1)
                self._counts.draft_tokens += num_draft_tokens
                self._counts.accepted_tokens += len(accepted) - 1
            self._counts.generated_tokens += len(accepted)
            self._scheduler.update(request, len(request.tokens) - 1)
            if request.finish_reason is not None:
                self._finish(request, request.finish_reason)
            outputs += [(request, output) for output in accepted]
        return outputs

    def _lap(self) -> float:
        """Return the seconds since the last call."""
        now = time.perf_counter()
        seconds, self._lap_started = now - self._lap_started, now
        return seconds

    def _handle_failed_step(self) -> None:
        """Queue all requests again after a failed step, but for one that failed alone twice."""
        self.failures += 1
        self._counts.failed_steps += 1
        for request in self._recovery.requeue_failed_step():
            # The error of the step may quote other requests: it is in the log alone.
            self._fail(request, RequestFailedError("two steps with it failed: send it again"))

    def _fail(self, request: RequestState, error: RuntimeError) -> None:
        request.error = error
        self._failed.append(request)
        self._finish(request, "error")

    def _finish(self, request: RequestState, reason: RequestFinishReason) -> None:
        with delayed_interrupt():
            request.finish(reason)
            self._scheduler.remove(request)
            if self._drafter is not None:
                self._drafter.forget(request)

    @cached_property
    def _prefixes(self) -> PrefixStore:
        """The store of the prefix cache; made when needed, because a fingerprint reads all weights.

        Pages of a draft model are not stored. The draft model computes missing tokens again.
        """
        snapshots = None if self._state_slots is None else self._state_slots.snapshots
        caches = self._pool.caches
        return make_prefix_store(self.model, self.settings, self._block_manager, snapshots, caches)
