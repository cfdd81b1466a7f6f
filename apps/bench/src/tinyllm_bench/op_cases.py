"""Every operation of the contract, and the layers made of them, with their cases."""

from collections.abc import Callable, Mapping, Sequence
from itertools import count

import mlx.core as mx
from tinyllm_ops import OpSet

from tinyllm_bench.choice_cases import argmax_cases, log_probability_cases, top_k_cases
from tinyllm_bench.errors import UsageError
from tinyllm_bench.layer_cases import (
    decoder_layer_cases,
    grouped_query_attention_cases,
    mlp_cases,
    moe_cases,
)
from tinyllm_bench.matrix_cases import embedding_cases, expert_linear_cases, linear_cases
from tinyllm_bench.op_case import OpCase, Regime, Work
from tinyllm_bench.race import Race
from tinyllm_bench.rounds import Budget, Contender
from tinyllm_bench.settings import Settings
from tinyllm_bench.subject import Subject
from tinyllm_bench.vector_cases import (
    attention_cases,
    norm_rope_cases,
    paged_attention_cases,
    quantize_cases,
    rms_norm_cases,
    rope_cases,
    softmax_cases,
    swiglu_cases,
)

Cases = Callable[[Subject, Sequence[Regime]], list[OpCase]]

# By the names of the fields of `OpSet`; a field that is missing here fails a test.
OPS: Mapping[str, Cases] = {
    "linear": linear_cases,
    "expert_linear": expert_linear_cases,
    "embedding": embedding_cases,
    "softmax": softmax_cases,
    "swiglu": swiglu_cases,
    "rms_norm": rms_norm_cases,
    "rope": rope_cases,
    "norm_rope": norm_rope_cases,
    "attention": attention_cases,
    "paged_attention": paged_attention_cases,
    "quantize": quantize_cases,
    "argmax": argmax_cases,
    "top_k": top_k_cases,
    "log_probability": log_probability_cases,
}
LAYERS: Mapping[str, Cases] = {
    "MLP": mlp_cases,
    "MoE": moe_cases,
    "GroupedQueryAttention": grouped_query_attention_cases,
    "DecoderLayer": decoder_layer_cases,
}
CASES: Mapping[str, Cases] = {**OPS, **LAYERS}


def check_ops(names: Sequence[str]) -> None:
    """Refuse the name of an operation or a layer that has no cases.

    Raises:
        UsageError: with the names that have cases.
    """
    for name in names:
        if name not in CASES:
            raise UsageError(f"--op: expected one of {', '.join(CASES)}, got {name}")


def op_cases(subject: Subject, settings: Settings) -> list[OpCase]:
    """The cases of all operations and layers, or of the requested ones."""
    regimes = regimes_of(settings)
    names = [name for name in CASES if not settings.op or name in settings.op]
    return [case for name in names for case in CASES[name](subject, regimes)]


def regimes_of(settings: Settings) -> list[Regime]:
    """One token after the context, one of each of a batch of texts, a prompt."""
    keys = settings.keys_before + 1
    return [
        Regime("decode", 1, 1, keys),
        Regime("batch", settings.batch, 1, keys),
        Regime("prefill", 1, settings.prompt_tokens, settings.prompt_tokens),
    ]


def op_race(case: OpCase, opsets: Sequence[OpSet], settings: Settings) -> Race:
    """A case with its inputs in memory, and all OpSets at the start."""
    work = case.make()
    return Race(
        what=case.op,
        operand=case.operand,
        regime=case.regime.name,
        tokens=case.regime.tokens,
        contenders=[_contender(ops, work) for ops in opsets],
        cost=lambda _name, _calls: work.cost,
        budget=Budget(settings.seconds),
    )


def _contender(ops: OpSet, work: Work) -> Contender:
    """An OpSet, ready to do the work: the calls of a sample are one graph, as in a model."""
    numbers = count()

    def run(calls: int) -> None:
        results = [work.call(ops, next(numbers)) for _ in range(calls)]
        mx.eval([y if isinstance(y, mx.array) else y.arrays for y in results])

    return Contender(ops.name, run)
