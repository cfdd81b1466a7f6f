"""Many requests, one model."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import mlx.core as mx
from tinyllm_qwen import Qwen, Tokenizer
from tinyllm_qwen.sampling.sample import Sample
from tinyllm_qwen.text.output import OutputProcessor

from tinyllm_engine.chooser import Chooser
from tinyllm_engine.config import EngineSettings
from tinyllm_engine.embedding import Embedding
from tinyllm_engine.grammar.compiler import GrammarCompiler
from tinyllm_engine.handle import Handle
from tinyllm_engine.kv.block_manager import BlockManager
from tinyllm_engine.kv.fingerprint import fingerprint
from tinyllm_engine.kv.page_pool import PagePool
from tinyllm_engine.kv.prefix_store import PrefixStore
from tinyllm_engine.output import FinishReason, Output
from tinyllm_engine.request import PromptTooLongError, Request, RequestError
from tinyllm_engine.runner import Runner
from tinyllm_engine.schedule.prefill_budget import Pace
from tinyllm_engine.schedule.scheduler import Scheduler
from tinyllm_engine.schedule.step import Chunk, Plan
from tinyllm_engine.sequence import Sequence as Tokens
from tinyllm_engine.speculative.coverage import Coverage
from tinyllm_engine.speculative.draft_model import DraftModel
from tinyllm_engine.speculative.drafter import Drafter
from tinyllm_engine.speculative.prompt_lookup import PromptLookup
from tinyllm_engine.stats import EngineStats

RETRY_AFTER = 1.0
"""Seconds until it may be worth asking an engine again that had no room."""


class EngineFullError(RuntimeError):
    """Too many requests wait.

    Attributes:
        retry_after: seconds after which there may be room.
    """

    def __init__(self, waiting: int, retry_after: float) -> None:
        """Say how many wait."""
        super().__init__(f"{waiting} requests are waiting: try again in {retry_after:.0f} s")
        self.retry_after = retry_after


class Engine:
    """Continues many prompts at once, a step at a time (continuous batching, Yu et al. 2022).

    Requests join and leave at any step. To be used from one thread, the one that loaded the model:
    MLX's streams belong to threads. `AsyncEngine` gives it one of its own.

    engine = Engine(*load("pico"))
    handle = engine.add(Request(engine.tokenizer.encode("what does rmsnorm do?")))
    for output in engine.run(handle):
        print(output.text, end="")

    Attributes:
        model: the model.
        tokenizer: its tokenizer.
        settings: limits and choices.
    """

    def __init__(
        self,
        model: Qwen,
        tokenizer: Tokenizer,
        settings: EngineSettings = EngineSettings(),
        *,
        draft: Qwen | None = None,
    ) -> None:
        """Take the memory for keys and values.

        Args:
            model: the model.
            tokenizer: its tokenizer.
            settings: limits and choices.
            draft: a smaller model of the same tokenizer, which guesses `settings.speculation`
                tokens ahead; without it they are guessed from what the text has said before.

        Raises:
            ValueError: if it is too little, or a setting or the draft model does not suit the
                model.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.settings = settings
        pool = PagePool(model, settings, draft)
        kept = settings.prefix_cache_bytes
        max_kept = None if kept is None else kept // pool.page_bytes
        self._pages = BlockManager(pool.num_pages, settings.page_size, max_kept)
        self._scheduler = Scheduler(
            self._pages, settings.max_running, prefix_cache=settings.prefix_cache
        )
        self._runner = Runner(model, pool.caches)
        self._pace = Pace(settings.step_seconds, settings.prefill_tokens)
        self._drafter: Drafter = PromptLookup() if draft is None else self._draft_model(draft, pool)
        self._grammars = GrammarCompiler(tokenizer, model.config.vocab_size)
        self._caches = pool.caches
        if settings.prefix_cache and settings.prefix_path is not None:
            self._prefixes.load(settings.prefix_path)
        self._handles: dict[Tokens, Handle] = {}
        self._arrivals = 0
        self._prompt_tokens = self._cached_tokens = self._generated_tokens = 0

    @property
    def has_work(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._handles)

    @property
    def stats(self) -> EngineStats:
        """How it stands."""
        pages = self._pages
        return EngineStats(
            running=len(self._scheduler.running),
            waiting=self._scheduler.waiting,
            pages_total=pages.num_pages,
            pages_used=pages.num_pages - pages.available,
            pages_kept=pages.kept,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            generated_tokens=self._generated_tokens,
            preemptions=self._scheduler.preemptions,
            drafted_tokens=self._drafter.acceptance.drafted,
            accepted_tokens=self._drafter.acceptance.accepted,
        )

    def add(self, request: Request) -> Handle:
        """Take a request; its tokens come from the steps after this.

        Raises:
            RequestError: if it can never be served by this engine; `PromptTooLongError` if that is
                for its length.
            EngineFullError: if as many requests wait as may.
        """
        prompt, config = list(request.prompt), self.model.config
        self._check(prompt)
        if self._scheduler.waiting >= self.settings.max_waiting:
            raise EngineFullError(self._scheduler.waiting, RETRY_AFTER)
        max_tokens = min(request.max_tokens, config.context_length - len(prompt))
        needed = self._pages.pages_for(len(prompt) + max_tokens)
        if needed > self._pages.num_pages:
            raise RequestError(
                f"max_tokens: {len(prompt)} tokens of prompt and {max_tokens} more take {needed} "
                f"pages, the engine has {self._pages.num_pages}: ask for fewer, or give it more "
                "memory"
            )
        try:
            ops, grammar = self.model.ops, request.grammar
            constraint = None if grammar is None else self._grammars.compile(grammar)
            chooser = Chooser(request.sampling, config.vocab_size, prompt, ops, constraint)
            text = OutputProcessor(self.tokenizer, request.stop, ignore_end=request.ignore_end)
        except ValueError as error:
            raise RequestError(str(error)) from error
        handle = Handle(Tokens(request, self._arrivals, prompt), chooser, text, max_tokens)
        self._arrivals += 1
        self._prompt_tokens += len(prompt)
        self._handles[handle.sequence] = handle
        self._scheduler.add(handle.sequence)
        return handle

    def cancel(self, handle: Handle) -> None:
        """Take a request back; its pages are free at once. One that has ended stays as it is."""
        if handle.finish_reason is None:
            self._end(handle, "cancelled")

    def step(self) -> list[tuple[Handle, Output]]:
        """Compute a chunk of prompts and a token, or a few, of each request that has got so far.

        Returns:
            The tokens chosen and whose they are; several of a request in their order.
        """
        limits = self._limits()
        self._drafter.guess(limits)
        for sequence in limits:
            del sequence.draft[self._handles[sequence].chooser.admits(sequence.draft) :]
        plan = self._scheduler.plan(self._pace.tokens)
        started = time.perf_counter()
        self._drafter.follow(plan)
        self._runner.copy(plan.copies)
        self._prefill(plan, started)
        return self._decode(plan.decode) if plan.decode else []

    def run(self, handle: Handle) -> Iterator[Output]:
        """Take steps until a request has ended, and give its tokens.

        What others get meanwhile is lost to the caller: for several requests at once use `step`.
        """
        while handle.finish_reason is None:
            yield from (output for owner, output in self.step() if owner is handle)

    def save_prefixes(self, path: Path | None = None) -> int:
        """Write the pages of the prefix cache to a file, for the next engine of this model.

        Args:
            path: the file; None takes `settings.prefix_path`.

        Returns:
            How many pages were written; 0 if that failed, which the log explains.

        Raises:
            ValueError: if there is no path.
        """
        path = self.settings.prefix_path if path is None else path
        if path is None:
            raise ValueError("path: expected one here or in EngineSettings.prefix_path, got None")
        return self._prefixes.save(path)

    def embedding(self, tokens: Sequence[int]) -> Embedding:
        """Begin with the direction of a text, in chunks that take as long as those of prompts.

        Raises:
            RequestError: if the text is empty or too long.
        """
        self._check(tokens)
        return Embedding(self.model, tokens, self._pace)

    def embed(self, tokens: Sequence[int]) -> list[float]:
        """The direction, of length 1, in which the model stands after a text: see `Embedding`.

        Nothing else is computed meanwhile; `AsyncEngine.embed` takes steps in between.

        Raises:
            RequestError: if the text is empty or too long.
        """
        embedding = self.embedding(tokens)
        while (direction := embedding.advance()) is None:
            pass
        return direction

    def _check(self, prompt: Sequence[int]) -> None:
        config = self.model.config
        if not prompt:
            raise RequestError("prompt: expected at least one token, got none")
        if not 0 <= min(prompt) <= max(prompt) < config.vocab_size:
            raise RequestError(
                f"prompt: expected token ids below {config.vocab_size}, "
                f"got {min(prompt)} to {max(prompt)}"
            )
        if len(prompt) >= config.context_length:
            raise PromptTooLongError(
                f"prompt: expected fewer tokens than the model's context of "
                f"{config.context_length}, got {len(prompt)}: shorten it"
            )

    @cached_property
    def _prefixes(self) -> PrefixStore:
        """What saves and loads pages; made when it is needed, since it looks at all weights.

        A draft model's pages are not among them: it catches up with what it has not computed.
        """
        settings = self.settings
        identity = f"{fingerprint(self.model)} {settings.page_size} {settings.kv_bits}"
        return PrefixStore(self._pages, self._caches, identity)

    def _draft_model(self, draft: Qwen, pool: PagePool) -> DraftModel:
        """A draft model on the pages of the pool."""
        if not self.settings.speculation:
            raise ValueError("speculation: expected at least 1 with a draft model, got 0")
        vocab_size = self.tokenizer.vocab_size
        if draft.config.vocab_size < vocab_size:
            raise ValueError(
                f"draft: expected a model of the same tokenizer, with at least {vocab_size} "
                f"tokens, got one of {draft.config.vocab_size}"
            )
        return DraftModel(
            draft,
            pool.draft_caches,
            Coverage(pool.num_pages, self.settings.page_size),
            self._scheduler.room,
            vocab_size=vocab_size,
            prefill_tokens=self.settings.prefill_tokens,
        )

    def _limits(self) -> dict[Tokens, int]:
        """Who is about to choose, and how many tokens may be guessed for it: at least one."""
        limits = {
            sequence: min(self.settings.speculation, self._handles[sequence].left - 1)
            for sequence in self._scheduler.running
            if not sequence.is_prefilling and sequence.computed == len(sequence.tokens) - 1
        }
        return {sequence: limit for sequence, limit in limits.items() if limit > 0}

    def _prefill(self, plan: Plan, started: float) -> None:
        if not plan.prefill:
            return
        self._runner.prefill(plan.prefill)
        tokens = sum(chunk.length for chunk in plan.prefill)
        self._pace.observe(tokens, time.perf_counter() - started)
        for chunk in plan.prefill:
            self._scheduler.advance(chunk.sequence, chunk.stop)

    def _decode(self, chunks: list[Chunk]) -> list[tuple[Handle, Output]]:
        choosing = [chunk for chunk in chunks if chunk.chooses]
        samples = self._choices(chunks, choosing)
        mx.eval(
            [
                array
                for chunk, chosen in zip(choosing, samples, strict=True)
                for sample in chosen
                for array in self._handles[chunk.sequence].wanted(sample)
            ]
        )
        for chunk in chunks:
            if not chunk.chooses:
                self._scheduler.advance(chunk.sequence, chunk.stop)
        return [
            (handle, output)
            for chunk, chosen in zip(choosing, samples, strict=True)
            for handle in [self._handles[chunk.sequence]]
            for output in self._take(chunk, handle, chosen)
        ]

    def _choices(self, chunks: list[Chunk], choosing: list[Chunk]) -> list[list[Sample]]:
        """Tokens for each chunk that chooses: after its last token and after each of its drafts."""
        stops = list(accumulate(1 + chunk.drafts for chunk in choosing))
        rows = [
            slice(stop - 1 - chunk.drafts, stop)
            for chunk, stop in zip(choosing, stops, strict=True)
        ]
        choosers = [self._handles[chunk.sequence].chooser for chunk in choosing]
        reaches = [chooser.reach for chooser in choosers if chooser.reach is not None]
        # Several processes that share the vocabulary tell each other few tokens sooner than all.
        if self.model.share is not None and choosing and len(reaches) == len(choosing):
            best = self._runner.decode_best(chunks, max(reaches))
            return [
                chooser.choose_among(best.at(own))
                for chooser, own in zip(choosers, rows, strict=True)
            ]
        logits = self._runner.decode(chunks)
        if any(chooser.is_constrained for chooser in choosers):
            mx.async_eval(logits)  # the device begins while the host looks at grammars
        return [
            chooser.choose(logits[own], chunk.sequence.draft[: chunk.drafts])
            for chooser, own, chunk in zip(choosers, rows, choosing, strict=True)
        ]

    def _take(self, chunk: Chunk, handle: Handle, chosen: list[Sample]) -> list[Output]:
        """The tokens that hold: up to the first that is not the draft which the next assumed."""
        sequence = chunk.sequence
        drafts = sequence.draft[: chunk.drafts]
        outputs: list[Output] = []
        for sample, draft in zip(chosen, [*drafts, None], strict=True):
            token = int(sample.token)
            outputs.append(handle.take(token, sample))
            if handle.finish_reason is not None or token != draft:
                break
        self._generated_tokens += len(outputs)
        self._drafter.judge(sequence, len(drafts), len(outputs) - 1)
        handle.chooser.keep([output.token for output in outputs])
        self._scheduler.advance(sequence, len(sequence.tokens) - 1)
        sequence.draft.clear()
        if handle.finish_reason is not None:
            self._end(handle, handle.finish_reason)
        return outputs

    def _end(self, handle: Handle, reason: FinishReason) -> None:
        handle.finish_reason = reason
        self._cached_tokens += handle.usage.cached_tokens
        self._scheduler.remove(handle.sequence)
        self._drafter.forget(handle.sequence)
        del self._handles[handle.sequence]
