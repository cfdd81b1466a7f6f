"""One run of `bench`: ceilings, operations, models, and the ceilings again."""

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.metadata import version
from itertools import count
from pathlib import Path

import mlx.core as mx
import numpy as np

from tinyllm_bench.cases import registry
from tinyllm_bench.cases.case import OpCase
from tinyllm_bench.cases.qwen_runner import QwenRunner
from tinyllm_bench.cases.whole_model import Runner, decode_comparison, prefill_comparison
from tinyllm_bench.ceilings import measure_ceilings
from tinyllm_bench.machine import Machine
from tinyllm_bench.models.model import BenchModel
from tinyllm_bench.opsets import choose_opsets
from tinyllm_bench.peers.registry import find_peers
from tinyllm_bench.report.report import ModelInfo, Report
from tinyllm_bench.report.tables import progress_line
from tinyllm_bench.settings import Settings

_CEILING_SECONDS = 1.0


class Run:
    """One run of the program. Its report holds the results so far."""

    def __init__(
        self, settings: Settings, cases: Mapping[str, registry.Cases] = registry.CASES
    ) -> None:
        """Make the model. `cases` are the operations that can be timed, by name."""
        registry.check_ops(settings.op, cases)
        self._cases = cases
        self._opsets = choose_opsets(settings.ops)
        self._settings = settings
        with progress_line() as progress:
            progress("making the weights", 0)
            self._model = model = BenchModel.make(settings)
        made = ModelInfo(model.name, str(model.format), model.nbytes)
        self.report = Report(settings, Machine.here(), version("tinyllm-bench"), made)

    def measure(self) -> None:
        """Measure everything. After Ctrl-C the report holds the results so far."""
        settings, report = self._settings, self.report
        mx.random.seed(0)
        cases = registry.op_cases(self._model, settings, self._cases) if settings.times_ops else []
        finished = count()
        try:
            with (
                progress_line(2 + len(cases) + 2 * settings.times_model) as progress,
                ExitStack() as stack,
            ):
                progress("ceilings of the machine", next(finished))
                self._measure_ceilings()
                while cases:  # a finished case refers to no weights
                    case = cases.pop(0)
                    progress(f"{case.op} {case.operand}, {case.regime.name}", next(finished))
                    self._measure_op(case)
                runners = self._start_runners(stack) if settings.times_model else []
                for make in (prefill_comparison, decode_comparison) if runners else ():
                    comparison = make(runners, settings)
                    progress(f"{comparison.case.regime} of the model", next(finished))
                    comparison.run(report.results, report.failures)
                progress("ceilings of the machine", next(finished))
                self._measure_ceilings()
        except KeyboardInterrupt:
            report.interrupted = True

    def _measure_op(self, case: OpCase) -> None:
        """Time one operation with all OpSets, and free the memory of its inputs."""
        comparison = registry.op_comparison(case, self._opsets, self._settings.seconds)
        comparison.run(self.report.results, self.report.failures)
        del comparison
        mx.clear_cache()

    def _measure_ceilings(self) -> None:
        """Measure the ceilings. The second time, keep the higher value of each ceiling."""
        seconds = min(_CEILING_SECONDS, 2 * self._settings.seconds)
        measured = measure_ceilings(self.report.machine, seconds)
        before = self.report.ceilings
        self.report.ceilings = measured if before is None else before.best(measured)

    def _start_runners(self, stack: ExitStack) -> list[Runner]:
        """Return all OpSets and peers with the same prompt. The stack ends the peers."""
        model, settings = self._model, self._settings
        draw = np.random.default_rng(0)
        prompt = draw.integers(0, model.config.vocab_size, settings.prompt_tokens).tolist()
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tinyllm-bench-"))
        peers, notices = find_peers(model, settings, prompt, Path(folder))
        for peer in peers:
            stack.callback(peer.close)
        self.report.notices += notices
        context, kv_bits = settings.context_tokens, settings.kv_bits
        ours = (QwenRunner(model, ops, prompt, context, kv_bits) for ops in self._opsets)
        return [*ours, *peers]
