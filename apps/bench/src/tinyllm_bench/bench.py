"""A run: ceilings, operations, models, ceilings again."""

import tempfile
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import numpy as np

from tinyllm_bench.ceilings import measure_ceilings
from tinyllm_bench.machine import Machine
from tinyllm_bench.model_races import decode_race, prefill_race
from tinyllm_bench.op_cases import check_ops, op_cases, op_race
from tinyllm_bench.opsets import choose_opsets
from tinyllm_bench.peers.roster import find_peers
from tinyllm_bench.progress import ProgressLine
from tinyllm_bench.qwen_runner import QwenRunner
from tinyllm_bench.report import Report
from tinyllm_bench.runner import Runner
from tinyllm_bench.settings import Settings
from tinyllm_bench.subject import Subject

_CEILING_SECONDS = 1.0


class Bench:
    """One run of the program.

    Attributes:
        report: what is known so far; whole when `run` returns.
    """

    def __init__(self, settings: Settings) -> None:
        """Make the model.

        Raises:
            BenchError, CheckpointError, HubError, UsageError: as `Subject.make`; and UsageError
                for a name that nothing has.
        """
        check_ops(settings.op)
        self._opsets = choose_opsets(settings.ops)
        self._settings = settings
        machine = Machine.here()
        self._subject = Subject.make(settings)
        self.report = Report.begin(settings, machine, version("tinyllm-bench"), self._subject)

    def run(self, progress: ProgressLine) -> None:
        """Measure everything; Ctrl-C ends the run with what the report has by then."""
        settings = self._settings
        mx.random.seed(0)
        cases = op_cases(self._subject, settings) if settings.times_ops else []
        progress.expect(2 + len(cases) + 2 * settings.times_model)
        try:
            self._measure_ceilings(progress)
            for case in cases:
                progress.begin(f"{case.op} {case.operand}, {case.regime.name}")
                op_race(case, self._opsets, settings).run(self.report.results)
                mx.clear_cache()
                progress.end()
            if settings.times_model:
                with tempfile.TemporaryDirectory(prefix="tinyllm-bench-") as folder:
                    self._time_model(progress, Path(folder))
            self._measure_ceilings(progress)
        except KeyboardInterrupt:
            self.report.interrupted = True

    def _measure_ceilings(self, progress: ProgressLine) -> None:
        """Once more, keeping the better ones."""
        progress.begin("what the machine can do")
        seconds = min(_CEILING_SECONDS, 2 * self._settings.seconds)
        measured = measure_ceilings(self.report.machine, seconds)
        before = self.report.ceilings
        self.report.ceilings = measured if before is None else before.best(measured)
        progress.end()

    def _time_model(self, progress: ProgressLine, folder: Path) -> None:
        """Prefill and decoding, over all OpSets and peers."""
        progress.begin("loading the models")
        runners = self._runners(folder)
        for race in (
            prefill_race(runners, self._settings),
            decode_race(runners, self._settings),
        ):
            progress.begin(f"{race.regime}, {race.operand}")
            race.run(self.report.results)
            progress.end()

    def _runners(self, folder: Path) -> list[Runner]:
        """Everything that can run the model, with the same prompt of random tokens."""
        subject, settings = self._subject, self._settings
        draw = np.random.default_rng(0)
        prompt = draw.integers(0, subject.config.vocab_size, settings.prompt_tokens).tolist()
        runners: list[Runner] = [
            QwenRunner(subject, ops, prompt, settings.keys_before) for ops in self._opsets
        ]
        if settings.peers:
            peers, notices = find_peers(subject, settings, prompt, folder)
            runners += peers
            self.report.notices += notices
        return runners
