"""Many requests at once in one engine: `bench engine`."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest

import numpy as np
from rich.table import Table
from tinyllm_cli.messages import INTERRUPTED, UsageError, notice
from tinyllm_engine import Engine, EngineSettings, Request, RequestState
from tinyllm_kernels import BackendChoice
from tinyllm_ops import OpSet
from tinyllm_qwen import Qwen, load

from tinyllm_bench.cases.case import prepare
from tinyllm_bench.machine import Machine
from tinyllm_bench.models.model import BenchModel
from tinyllm_bench.report.json_text import json_text
from tinyllm_bench.report.tables import new_table, report_console
from tinyllm_bench.rounds import percentile
from tinyllm_bench.serving.options import EngineOptions
from tinyllm_bench.settings import Settings

SHORT_PROMPT = 32  # tokens of a prompt that takes little time to prefill


@dataclass(frozen=True)
class BatchResult:
    """Requests that decode together."""

    requests: int  # number of requests
    tokens_per_second: float  # tokens of all requests per second
    gaps: tuple[float, ...]  # seconds of each step, or over HTTP between two pieces


@dataclass(frozen=True)
class LongPromptResult:
    """Effect of a long prompt on other requests."""

    prompt_tokens: int  # tokens of the long prompt
    prompt_seconds: float  # time to first token of the long prompt
    gaps: tuple[float, ...]  # seconds between two tokens of a request that decodes meanwhile
    first_tokens: tuple[float, ...]  # times to first token of short requests that arrive meanwhile
    # Time to first token of such a prompt without other requests; None if it was not measured.
    alone_seconds: float | None = None


@dataclass(frozen=True)
class LoadResults:
    """Results of an engine, or of a server that receives the same requests."""

    # In each round, a batch of each size. Ctrl-C may leave the last round incomplete.
    rounds: Sequence[Sequence[BatchResult]]
    long_prompt: LongPromptResult | None

    @property
    def by_size(self) -> list[tuple[BatchResult, ...]]:
        """Batches of all rounds for each size."""
        sizes = zip_longest(*self.rounds)
        return [tuple(batch for batch in size if batch is not None) for size in sizes]


class EngineTarget:
    """An engine in this process."""

    def __init__(self, model: BenchModel, ops: OpSet, max_num_seqs: int) -> None:
        """Build an engine for `max_num_seqs` requests at a time, at least two.

        The weights of `model` get the layout of `ops`, without a copy.
        """
        _, tokenizer = load("pico")  # the text of the answers is not used
        prepare(ops, model.weights)
        settings = EngineSettings(max_num_seqs=max(max_num_seqs, 2), enable_prefix_caching=False)
        self.engine = Engine(Qwen(model.config, model.weights, ops=ops), tokenizer, settings)

    def batch(self, requests: int, tokens: int, seed: int = 0) -> BatchResult:
        """Let requests decode `tokens` tokens each. Time the steps in which all of them decode."""
        engine = self.engine
        prompts = random_prompts(engine.model.config.vocab_size, requests, SHORT_PROMPT, seed)
        states = [self._add(prompt, tokens + 2) for prompt in prompts]
        while any(state.generated == 0 for state in states):
            engine.step()
        gaps, generated = [], 0
        started = time.perf_counter()
        while all(state.finish_reason is None for state in states):
            before = time.perf_counter()
            generated += len(engine.step())
            gaps.append(time.perf_counter() - before)
        seconds = time.perf_counter() - started
        self._finish()
        return BatchResult(requests, generated / seconds, tuple(gaps))

    def long_prompt(self, prompt_tokens: int, every: float) -> LongPromptResult:
        """Prefill a long prompt while a request decodes and short ones arrive `every` seconds."""
        engine, config = self.engine, self.engine.model.config
        alone, long = random_prompts(config.vocab_size, 2, prompt_tokens, seed=0)
        begin = time.perf_counter()
        self._add(alone, 1)
        self._finish()
        alone_seconds = time.perf_counter() - begin
        shorts = iter(random_prompts(config.vocab_size, 1000, SHORT_PROMPT, seed=1))
        decoding = self._add(next(shorts), config.context_length)
        while decoding.generated == 0:
            engine.step()
        started = latest = time.perf_counter()
        state = self._add(long, 1)
        gaps: list[float] = []
        arrived: dict[RequestState, float] = {}
        first_tokens: list[float] = []
        while state.finish_reason is None:
            if time.perf_counter() - started > every * (len(arrived) + 1):
                arrived[self._add(next(shorts), 1)] = time.perf_counter()
            owners = [owner for owner, _ in engine.step()]
            now = time.perf_counter()
            first_tokens += [now - arrived[owner] for owner in owners if owner in arrived]
            if decoding in owners:
                gaps.append(now - latest)
                latest = now
        seconds = time.perf_counter() - started
        engine.cancel(decoding)
        self._finish()
        return LongPromptResult(
            prompt_tokens, seconds, tuple(gaps), tuple(first_tokens), alone_seconds
        )

    def _add(self, prompt: Sequence[int], tokens: int) -> RequestState:
        space = self.engine.model.config.context_length - len(prompt)
        return self.engine.add(Request(prompt, min(tokens, space), ignore_end=True))

    def _finish(self) -> None:
        while self.engine.has_work:
            self.engine.step()


def random_prompts(vocab_size: int, count: int, length: int, seed: int) -> list[list[int]]:
    """Draw prompts of random tokens, without common prefixes."""
    generator = np.random.default_rng(seed)
    drawn: list[list[int]] = generator.integers(0, vocab_size, (count, length)).tolist()
    return drawn


def run_engine(options: EngineOptions) -> int:
    """Measure an engine, and write the results to stdout. Return 130 after Ctrl-C, otherwise 0."""
    try:
        ops = BackendChoice.choose(options.ops, options.dtype).ops
    except ValueError as error:
        raise UsageError(f"--{error}") from error
    settings = Settings(shape=options.shape, bits=options.bits, dtype=options.dtype, ops=[ops.name])
    model = BenchModel.make(settings)
    context = model.config.context_length
    for name, count, least, most in (
        ("--tokens", options.tokens, 1, context - SHORT_PROMPT - 2),
        ("--prompt", options.prompt, 0, context - 1),
    ):
        if count > most:
            raise UsageError(
                f"{name}: expected from {least} to {most} with the context of {model.name}, got "
                f"{count}"
            )
    target = EngineTarget(model, ops, max(options.requests))
    rounds: list[list[BatchResult]] = []
    prompt: LongPromptResult | None = None
    code = 0
    try:
        target.batch(1, 4)  # warm-up
        for seed in range(options.rounds):
            rounds.append([])
            for size in options.requests:
                rounds[-1].append(target.batch(size, options.tokens, seed))
        if options.prompt:
            prompt = target.long_prompt(options.prompt, every=1.0)
    except KeyboardInterrupt:
        notice("interrupted: the remaining measurements are missing", "bench")
        code = INTERRUPTED
    write_results(options, ops, {"engine": LoadResults(rounds, prompt)})
    return code


def write_results(options: EngineOptions, ops: OpSet, results: Mapping[str, LoadResults]) -> None:
    """Write results, by the name of the program, to stdout: a table or JSON."""
    machine = f"{Machine.here()}; {options.shape}, {options.dtype}, ops {ops.name}"
    if options.as_json:
        document: dict[str, object] = {"machine": machine}
        for name, found in results.items():
            batches = [asdict(batch) for size in found.by_size for batch in size]
            long_prompt = asdict(found.long_prompt) if found.long_prompt else None
            document[name] = {"batches": batches, "long_prompt": long_prompt}
        sys.stdout.write(json_text(document) + "\n")
        return
    table = new_table(("by",), ("requests", "tokens/s", "times one", "gap p50", "p95 (ms)"))
    effects = new_table(
        ("during a long prompt",),
        ("tokens", "seconds", "alone", "gap p50", "p95", "requests", "first token p50", "max (ms)"),
    )
    for name, found in results.items():
        _add_batches(table, name, found)
        if found.long_prompt:
            _add_long_prompt(effects, name, found.long_prompt)
    console = report_console()
    console.print(f"{machine}\n")
    console.print(table, *(["", effects] if effects.row_count else []), sep="\n")


def _add_batches(table: Table, name: str, results: LoadResults) -> None:
    """Add a row for each number of requests."""
    one = 0.0
    for batches in results.by_size:
        requests = batches[0].requests
        rate = percentile([batch.tokens_per_second for batch in batches], 50)
        one = one or rate / requests
        gaps = [gap for batch in batches for gap in batch.gaps]
        times = [f"{1e3 * percentile(gaps, share):.1f}" for share in (50, 95)]
        table.add_row(name, str(requests), f"{rate:.1f}", f"{rate / one:.2f}", *times)


def _add_long_prompt(table: Table, name: str, result: LongPromptResult) -> None:
    """Add a row for the effect of a long prompt."""
    gaps = [f"{1e3 * percentile(result.gaps, share):.0f}" for share in (50, 95)]
    first = [f"{1e3 * percentile(result.first_tokens, share):.0f}" for share in (50, 100)]
    size, requests = str(result.prompt_tokens), str(len(result.first_tokens))
    alone = "" if result.alone_seconds is None else f"{result.alone_seconds:.2f}"
    table.add_row(name, size, f"{result.prompt_seconds:.2f}", alone, *gaps, requests, *first)
