"""The choice of a token, with the cases that it is timed with: rows of scores of the vocabulary."""

from collections.abc import Callable, Sequence

import mlx.core as mx
from tinyllm_ops import OpSet

from tinyllm_bench.cost import Cost
from tinyllm_bench.op_case import OpCase, Regime, Work, activations, nbytes
from tinyllm_bench.subject import Subject

_K = 20
"""What Qwen3 recommends for top-k, and the most log-probabilities that OpenAI's interface gives."""


def argmax_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """Greedy decoding."""
    return _cases("argmax", subject, regimes, lambda ops, x: ops.argmax(x))


def top_k_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """What top-k sampling draws from."""
    return _cases("top_k", subject, regimes, lambda ops, x: ops.top_k(x, _K)[0])


def log_probability_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """What is reported of a token and its rivals."""

    def call(ops: OpSet, x: mx.array) -> mx.array:
        ids = mx.broadcast_to(mx.arange(_K, dtype=mx.int32), (x.shape[0], _K))
        return ops.log_probability(x, ids)

    return _cases("log_probability", subject, regimes, call)


def _cases(
    op: str,
    subject: Subject,
    regimes: Sequence[Regime],
    call: Callable[[OpSet, mx.array], mx.array],
) -> list[OpCase]:
    """One case a regime: of a prompt, too, only the last token is followed by a choice."""
    vocabulary = subject.config.vocab_size

    def case(regime: Regime) -> OpCase:
        def make() -> Work:
            x = activations(regime.rows, vocabulary, dtype=subject.form.dtype)
            return Work(lambda ops, _i: call(ops, x), Cost(nbytes(x)))

        return OpCase(op, str(vocabulary), regime, make)

    return [case(regime) for regime in regimes]
