"""Cases of the operations of recurrent layers; none for models without such layers."""

from collections.abc import Callable, Sequence

import mlx.core as mx
from tinyllm_ops import OpSet, StateTable
from tinyllm_qwen.config.recurrent import Recurrent

from tinyllm_bench.cases.case import OpCase, Regime, Work, activations, cases_of, nbytes
from tinyllm_bench.cost import Cost
from tinyllm_bench.models.model import BenchModel

RECURRENT_OPS = ("causal_conv", "gated_delta", "gated_rms_norm")


def recurrent_cases(op: str, model: BenchModel, regimes: Sequence[Regime]) -> list[OpCase]:
    """Return cases of one of `RECURRENT_OPS`. Each sequence of a regime has a state of its own."""
    recurrent, dtype = model.config.recurrent, model.format.dtype
    if recurrent is None:
        return []
    heads, value_dim = recurrent.num_value_heads, recurrent.value_dim

    def work(regime: Regime) -> Work:
        return _WORK[op](recurrent, regime, dtype)

    return cases_of(op, f"{heads}x{value_dim}", regimes, work)


def _conv(recurrent: Recurrent, regime: Regime, dtype: mx.Dtype) -> Work:
    channels = recurrent.channels
    x = activations(regime.tokens, channels, dtype=dtype)
    weight = activations(channels, recurrent.kernel, dtype=dtype)
    state = activations(regime.rows, recurrent.kernel - 1, channels, dtype=dtype)
    table = StateTable.rows(regime.rows, regime.length)

    def call(ops: OpSet, _layer: int) -> mx.array:
        return ops.causal_conv(x, weight, state, table)[0]

    return Work(call, Cost(2 * nbytes(x) + nbytes(weight) + 2 * nbytes(state)))


def _delta(recurrent: Recurrent, regime: Regime, dtype: mx.Dtype) -> Work:
    tokens, heads = regime.tokens, recurrent.num_value_heads
    keys = (tokens, recurrent.num_key_heads, recurrent.key_dim)
    q, k = activations(*keys, dtype=dtype), activations(*keys, dtype=dtype)
    v = activations(tokens, heads, recurrent.value_dim, dtype=dtype)
    a, b = activations(tokens, heads, dtype=dtype), activations(tokens, heads, dtype=dtype)
    a_log, dt_bias = activations(heads, dtype=mx.float32), activations(heads, dtype=dtype)
    shape = (regime.rows, heads, recurrent.value_dim, recurrent.key_dim)
    state = activations(*shape, dtype=mx.float32)
    table = StateTable.rows(regime.rows, regime.length)

    def call(ops: OpSet, _layer: int) -> mx.array:
        return ops.gated_delta(q, k, v, a, b, a_log, dt_bias, state, table)[0]

    return Work(call, Cost(nbytes(q, k, v, v, a, b) + 2 * nbytes(state)))


def _norm(recurrent: Recurrent, regime: Regime, dtype: mx.Dtype) -> Work:
    shape = (regime.tokens, recurrent.num_value_heads, recurrent.value_dim)
    x, gate = activations(*shape, dtype=dtype), activations(*shape, dtype=dtype)
    weight = activations(recurrent.value_dim, dtype=dtype)

    def call(ops: OpSet, _layer: int) -> mx.array:
        return ops.gated_rms_norm(x, gate, weight, 1e-6)

    return Work(call, Cost(2 * nbytes(x) + nbytes(gate, weight)))


_WORK: dict[str, Callable[[Recurrent, Regime, mx.Dtype], Work]] = {
    "causal_conv": _conv,
    "gated_delta": _delta,
    "gated_rms_norm": _norm,
}
