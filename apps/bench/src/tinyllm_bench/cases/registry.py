"""Registry of cases: every operation of the `OpSet` contract, and the layers."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count

import mlx.core as mx
from tinyllm_cli.messages import UsageError
from tinyllm_ops import OpSet

from tinyllm_bench.cases import attention, matrices, recurrent, vectors
from tinyllm_bench.cases.case import OpCase, Regime, Work
from tinyllm_bench.models.model import BenchModel
from tinyllm_bench.rounds import Budget, Case, Comparison, Contender, timed
from tinyllm_bench.settings import Settings

Cases = Callable[[BenchModel, Sequence[Regime]], list[OpCase]]

# The function that makes the cases of each `OpSet` field. A test fails if a field is missing.
CASES: Mapping[str, Cases] = {
    "linear": matrices.linear_cases,
    "expert_linear": matrices.expert_linear_cases,
    "embedding": matrices.embedding_cases,
    "softmax": vectors.softmax_cases,
    "swiglu": vectors.swiglu_cases,
    "rms_norm": vectors.rms_norm_cases,
    "rope": vectors.rope_cases,
    "norm_rope": partial(vectors.rope_cases, norm=True),
    "attention": attention.attention_cases,
    "paged_attention": attention.paged_attention_cases,
    **{op: partial(recurrent.recurrent_cases, op) for op in recurrent.RECURRENT_OPS},
    "quantize": vectors.quantize_cases,
    **{op: partial(vectors.logits_cases, op) for op in vectors.LOGITS_CALLS},
}


def op_cases(
    model: BenchModel, settings: Settings, cases: Mapping[str, Cases] = CASES
) -> list[OpCase]:
    """Return the cases of all operations, or of the requested ones."""
    regimes, chosen = regimes_of(settings), settings.op or cases
    return [case for name in cases if name in chosen for case in cases[name](model, regimes)]


def check_ops(names: Sequence[str], cases: Mapping[str, Cases] = CASES) -> None:
    """Raise `UsageError` if a name has no cases."""
    for name in names:
        if name not in cases:
            raise UsageError(f"--op: expected one of {', '.join(cases)}, got {name}")


def regimes_of(settings: Settings) -> list[Regime]:
    """Return the regimes: a token after the context, one token in each of a batch, and a prompt."""
    keys = settings.context_tokens + 1
    return [
        Regime("decode", 1, 1, keys),
        Regime("batch", settings.batch, 1, keys),
        Regime("prefill", 1, settings.prompt_tokens, settings.prompt_tokens),
    ]


def op_comparison(case: OpCase, opsets: Sequence[OpSet], seconds: float) -> Comparison:
    """Make the inputs of a case and return the comparison of all OpSets on it."""
    work, regime = case.make(), case.regime
    return Comparison(
        case=Case(case.op, case.operand, regime.name, regime.tokens),
        contenders=[_contender(ops, work) for ops in opsets],
        cost=lambda _name, _calls: work.cost,
        budget=Budget(seconds),
    )


def _contender(ops: OpSet, work: Work) -> Contender:
    """Return an OpSet as a contender. All calls of a sample are one MLX graph, as in a model."""
    numbers = count()

    def run(calls: int) -> None:
        results = [work.call(ops, next(numbers)) for _ in range(calls)]
        mx.eval([y if isinstance(y, mx.array) else y.arrays for y in results])

    return Contender(ops.name, timed(run))
