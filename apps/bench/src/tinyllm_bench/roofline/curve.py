"""One kernel at several sizes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tinyllm_ops import OpSet

from tinyllm_bench.matrix_cases import linear_cases
from tinyllm_bench.op_case import OpCase, Regime
from tinyllm_bench.op_cases import op_race
from tinyllm_bench.result import Result
from tinyllm_bench.settings import Settings
from tinyllm_bench.subject import Subject
from tinyllm_bench.vector_cases import attention_cases

_DECODED = (1, 2, 4, 8, 16)  # tokens of as many texts
_PROMPTS = (2, 8, 32, 128, 512)
_CONTEXTS = (512, 4096)  # keys that a decoded token sees
_TEXTS = (32, 128, 512, 2048)  # of a prompt, whose queries see each other
_PROJECTION = "gate_proj"  # of those of a block the largest


@dataclass(frozen=True)
class Curve:
    """What one implementation took for one kernel.

    Attributes:
        name: the kernel, and the form of its weights.
        cases: its sizes, the smallest first.
        results: one for each case, as far as they are measured.
    """

    name: str
    cases: Sequence[OpCase]
    results: list[Result] = field(default_factory=list)

    def measure(self, ops: OpSet, settings: Settings) -> None:
        """Time all cases."""
        for case in self.cases:
            op_race(case, [ops], settings).run(self.results)


def product_curves(subject: Subject) -> list[Curve]:
    """The largest projection of a block, for decoded tokens and for prompts."""
    decoded = [Regime("decode", rows, 1, 1) for rows in _DECODED]
    prompts = [Regime("prefill", 1, length, length) for length in _PROMPTS]
    return [
        Curve(f"{subject.form}, {name}", _largest(subject, regimes))
        for name, regimes in (("decoded", decoded), ("prompt", prompts))
    ]


def attention_curves(subject: Subject) -> list[Curve]:
    """All heads of a layer over a dense cache, for a decoded token and for prompts."""
    longest = subject.config.context_length
    decoded = [Regime("decode", 1, 1, keys) for keys in _CONTEXTS if keys <= longest]
    prompts = [Regime("prefill", 1, length, length) for length in _TEXTS if length <= longest]
    return [
        Curve(f"attention, {name}", attention_cases(subject, regimes))
        for name, regimes in (("decoded", decoded), ("prompt", prompts))
    ]


def _largest(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    cases = linear_cases(subject, regimes)
    return [case for case in cases if case.operand.startswith(_PROJECTION)]
