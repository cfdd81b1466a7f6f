"""Kernels that are measured at several sizes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tinyllm_bench.cases.attention import attention_cases
from tinyllm_bench.cases.case import OpCase, Regime
from tinyllm_bench.cases.matrices import linear_cases
from tinyllm_bench.cases.registry import op_comparison
from tinyllm_bench.models.model import BenchModel
from tinyllm_bench.rounds import Result
from tinyllm_bench.shapes import published_config
from tinyllm_cli.messages import UsageError
from tinyllm_ops import OpSet
from tinyllm_qwen import QwenConfig

_BATCHES = (1, 2, 4, 8, 16)  # one decoded token of each sequence
_PROMPTS = (2, 8, 32, 128, 512)
_CONTEXTS = (512, 4096)  # keys that a decoded token attends to
_ATTENTION_PROMPTS = (32, 128, 512, 2048)
_PROJECTION = "gate_proj"  # the largest projection of a layer


@dataclass(frozen=True)
class Kernel:
    """One kernel at several sizes.

    Attributes:
        name: the kernel and the format of its weights.
        cases: its sizes, the smallest first.
        results: one result for each measured case.
    """

    name: str
    cases: Sequence[OpCase]
    results: list[Result] = field(default_factory=list)

    def measure(self, ops: OpSet, seconds: float) -> None:
        """Time all cases."""
        for case in self.cases:
            op_comparison(case, [ops], seconds).run(self.results, [])


def check_shape(shape: str) -> None:
    """Check that the layers of a shape have the projection that is measured.

    Raises:
        UsageError: if there is no such shape, or its layers have experts in place of an MLP.
    """
    if QwenConfig.from_hf(published_config(shape)).experts is not None:
        raise UsageError(f"--shape: expected a model without experts, got {shape}")


def product_kernels(model: BenchModel) -> list[Kernel]:
    """Return the largest projection of a layer, for decoded tokens and for prompts."""
    decoded = [Regime("decode", rows, 1, 1) for rows in _BATCHES]
    prompts = [Regime("prefill", 1, length, length) for length in _PROMPTS]
    return [
        Kernel(f"{model.format}, decoded", _projection(model, decoded)),
        Kernel(f"{model.format}, prompt", _projection(model, prompts)),
    ]


def attention_kernels(model: BenchModel) -> list[Kernel]:
    """Return all heads of a layer over a dense cache, for a decoded token and for prompts."""
    longest = model.config.context_length
    decoded = [Regime("decode", 1, 1, keys) for keys in _CONTEXTS if keys <= longest]
    lengths = [length for length in _ATTENTION_PROMPTS if length <= longest]
    prompts = [Regime("prefill", 1, length, length) for length in lengths]
    return [
        Kernel("attention, decoded", attention_cases(model, decoded)),
        Kernel("attention, prompt", attention_cases(model, prompts)),
    ]


def _projection(model: BenchModel, regimes: Sequence[Regime]) -> list[OpCase]:
    return [case for case in linear_cases(model, regimes) if case.operand.startswith(_PROJECTION)]
