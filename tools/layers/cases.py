"""Cases of a decoder layer and its parts.

An `MLP`, a `MoE` or a `GroupedQueryAttention` that is called directly computes one operation after
the other. A `DecoderLayer` is computed by the stack of the OpSet, as in a model.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from tinyllm_bench.cases import case
from tinyllm_bench.cases.attention import PAGE_SIZE, page_table
from tinyllm_bench.cases.case import OpCase, PreparedLayers, Regime, Work, cases_of, nbytes
from tinyllm_bench.cases.matrices import EXPERTS, EXPERTS_PER_TOKEN, random_experts
from tinyllm_bench.cost import Cost, attention_flops, causal_pairs
from tinyllm_bench.models.model import BenchModel
from tinyllm_bench.models.random_weights import random_floats
from tinyllm_layers import (
    MLP,
    Batch,
    DecoderLayer,
    DenseCache,
    KVCache,
    MoE,
    PagedCache,
    QuantizedCache,
    make_stack,
    weights_of,
)
from tinyllm_ops import REFERENCE, OpSet, Weight
from tinyllm_qwen.layer_builder import LayerBuilder
from tinyllm_qwen.partition.groups import ParallelGroups

_CACHE_BITS = 8


def mlp_cases(model: BenchModel, regimes: Sequence[Regime]) -> list[OpCase]:
    """Return cases of the MLP; none if every layer is a mixture of experts."""

    def mlps(ops: OpSet) -> list[MLP]:
        return [layer.mlp for layer in _layers(model, ops) if isinstance(layer.mlp, MLP)]

    first = next(iter(mlps(REFERENCE)), None)
    if first is None:
        return []
    operand = f"{first.hidden_dim}x{first.dim}"
    return cases_of("MLP", operand, regimes, _feed_forward_work(model, mlps))


def moe_cases(model: BenchModel, regimes: Sequence[Regime]) -> list[OpCase]:
    """Return cases of the mixture of experts, with random experts if the model has none."""

    def moes(ops: OpSet) -> list[MoE]:
        own = [layer.mlp for layer in _layers(model, ops) if isinstance(layer.mlp, MoE)]
        return own or [_random_moe(model, ops)]

    first = moes(REFERENCE)[0]
    operand = f"{first.num_experts_per_tok} of {first.num_experts}x{first.hidden_dim}x{first.dim}"
    return cases_of("MoE", operand, regimes, _feed_forward_work(model, moes))


def grouped_query_attention_cases(model: BenchModel, regimes: Sequence[Regime]) -> list[OpCase]:
    """Return cases of the attention module over a dense cache."""
    config = model.config

    def attention(ops: OpSet) -> list[Any]:
        def make(layer: DecoderLayer) -> Any:
            return lambda x, batch, caches: layer.mixer(x, batch, caches[0], residual=x)

        return [make(layer) for layer in _layers(model, ops)]

    def work(regime: Regime) -> Work:
        weights = weights_of(_layers(model, REFERENCE)[0].mixer)
        cost = _total(
            _weights_cost(weights, regime), _kv_cost(model, regime, model.format.dtype.size)
        )
        return _cached_work(model, regime, DenseCache, attention, cost)

    heads = f"{config.num_attention_heads}/{config.num_key_value_heads} heads"
    return cases_of("GroupedQueryAttention", f"{heads} of {config.head_dim}", regimes, work)


def decoder_layer_cases(model: BenchModel, regimes: Sequence[Regime]) -> list[OpCase]:
    """Return cases of a whole layer over each kind of cache."""
    number_bytes = model.format.dtype.size
    group = next((size for size in (64, 32) if model.config.head_dim % size == 0), None)

    def dense(regime: Regime) -> Work:
        cost = _layer_cost(model, regime, number_bytes)
        return _cached_work(model, regime, DenseCache, _stacks(model), cost)

    def quantized(regime: Regime) -> Work:
        cost = _layer_cost(model, regime, _CACHE_BITS / 8 + 2 * number_bytes / (group or 1))
        return _cached_work(
            model, regime, lambda: QuantizedCache(_CACHE_BITS, group or 1), _stacks(model), cost
        )

    def paged(regime: Regime) -> Work:
        return _paged_work(model, regime)

    cases = cases_of("DecoderLayer", "dense", regimes, dense)
    cases += cases_of("DecoderLayer", f"pages of {PAGE_SIZE}", regimes, paged)
    if group is not None:
        cases += cases_of("DecoderLayer", f"{_CACHE_BITS}-bit", regimes, quantized)
    return cases


def _cached_work(
    model: BenchModel,
    regime: Regime,
    make_cache: Callable[[], KVCache],
    modules: Callable[[OpSet], list[Any]],
    cost: Cost,
) -> Work:
    """Return the work of modules, one per layer, each with a cache of the tokens before."""
    config, cached = model.config, regime.keys - regime.length
    caches = [make_cache() for _ in range(config.num_hidden_layers)]
    if cached:
        shape = (regime.rows, config.num_key_value_heads, cached, config.head_dim)
        k, v = (case.activations(*shape, dtype=model.format.dtype) for _ in range(2))
        for cache in caches:
            cache.update(k, v)
        mx.eval([array for cache in caches for array in cache.arrays])
    batch = Batch.at(cached, regime.rows, regime.length, regime.phase)
    prepared, x = PreparedLayers(modules), _input(model, regime)

    def call(ops: OpSet, i: int) -> mx.array:
        cache = caches[i % len(caches)]
        cache.trim(cached)  # removes the tokens of earlier calls
        y: mx.array = prepared.of(ops, i)(x, batch, [cache])
        return y

    return Work(_pass_by_pass(call, len(caches)), _total(Cost(2 * nbytes(x)), cost))


def _paged_work(model: BenchModel, regime: Regime) -> Work:
    """Return the work of a layer over pages. Each sequence has its own pages."""
    config, table, dtype = model.config, page_table(regime), model.format.dtype
    batch = Batch.paged(table, regime.phase)
    shape = (table.num_pages, config.num_key_value_heads, PAGE_SIZE, config.head_dim)
    caches = [
        PagedCache(case.activations(*shape, dtype=dtype), case.activations(*shape, dtype=dtype))
        for _ in range(config.num_hidden_layers)
    ]
    prepared = PreparedLayers(_stacks(model))
    x = _input(model, regime).reshape(batch.rows, batch.length, -1)

    def call(ops: OpSet, i: int) -> mx.array:
        y: mx.array = prepared.of(ops, i)(x, batch, [caches[i % len(caches)]])
        return y

    cost = _total(Cost(2 * nbytes(x)), _layer_cost(model, regime, dtype.size))
    return Work(_pass_by_pass(call, len(caches)), cost)


def _feed_forward_work(
    model: BenchModel, make: Callable[[OpSet], Sequence[MLP | MoE]]
) -> Callable[[Regime], Work]:
    """Return the work of an MLP or a mixture of experts, with the residual that it adds."""

    def work(regime: Regime) -> Work:
        x, prepared = _input(model, regime), PreparedLayers(make)

        def call(ops: OpSet, i: int) -> mx.array:
            return prepared.of(ops, i)(x, residual=x, phase=regime.phase)

        cost = _total(Cost(2 * nbytes(x)), _feed_forward_cost(make(REFERENCE)[0], regime))
        return Work(call, cost)

    return work


def _layers(model: BenchModel, ops: OpSet) -> list[DecoderLayer]:
    """Return the layers of the model, with weights in the memory layout of an OpSet."""
    config = model.config
    weights = {name: w for name, w in model.weights.items() if name.startswith("layers.")}
    case.prepare(ops, weights)
    builder = LayerBuilder(config, weights, ParallelGroups.single(config), ops)
    return [builder.decoder_layer(index) for index in range(config.num_hidden_layers)]


def _stacks(model: BenchModel) -> Callable[[OpSet], list[Any]]:
    """Return a function that makes a stack of one layer for each layer."""
    return lambda ops: [make_stack([layer], ops) for layer in _layers(model, ops)]


def _random_moe(model: BenchModel, ops: OpSet) -> MoE:
    """Return random experts in the format of the model, about as large as two projections."""
    width, dtype = model.config.hidden_size, model.format.dtype
    group = model.format.group_size if model.format.is_quantized else 1
    hidden = max(1, model.config.intermediate_size // 4 // group) * group
    weights: dict[str, Weight] = {
        "w_router": random_floats((EXPERTS, width), dtype, np.random.default_rng(2)),
        "w_gate": random_experts(model, (EXPERTS, hidden, width)),
        "w_up": random_experts(model, (EXPERTS, hidden, width)),
        "w_down": random_experts(model, (EXPERTS, width, hidden)),
    }
    case.prepare(ops, weights)
    return MoE(width, hidden, EXPERTS, EXPERTS_PER_TOKEN, *weights.values(), ops=ops)


def _input(model: BenchModel, regime: Regime) -> mx.array:
    width = model.config.hidden_size
    return case.activations(regime.rows, regime.length, width, dtype=model.format.dtype)


def _pass_by_pass(call: Callable[[OpSet, int], mx.array], layers: int) -> case.Call:
    """Compute each pass over the layers before the next pass writes to the same caches.

    Otherwise one graph would write to a cache twice, and MLX would copy the cache.
    """
    pending: list[mx.array] = []

    def computed(ops: OpSet, i: int) -> mx.array:
        if i % layers == 0:
            mx.eval(pending)
            pending.clear()
        pending.append(call(ops, i))
        return pending[-1]

    return computed


def _total(*costs: Cost) -> Cost:
    """Return the cost of several computations."""
    return Cost(sum(cost.bytes for cost in costs), sum(cost.flops for cost in costs))


def _layer_cost(model: BenchModel, regime: Regime, number_bytes: float) -> Cost:
    """Return the cost of a layer, with `number_bytes` per number in the cache."""
    layer = _layers(model, REFERENCE)[0]
    norms = Cost(nbytes(layer.input_norm.weight, layer.post_attention_norm.weight))
    attention = _weights_cost(weights_of(layer.mixer), regime)
    feed_forward = _feed_forward_cost(layer.mlp, regime)
    return _total(norms, attention, _kv_cost(model, regime, number_bytes), feed_forward)


def _kv_cost(model: BenchModel, regime: Regime, number_bytes: float) -> Cost:
    """Return the cost of reading keys and values, and of the products with them."""
    config = model.config
    numbers = 2 * regime.rows * config.num_key_value_heads * regime.keys * config.head_dim
    pairs = regime.rows * causal_pairs(regime.length, regime.keys)
    flops = attention_flops(config.num_attention_heads, config.head_dim, pairs)
    return Cost(int(numbers * number_bytes), flops)


def _feed_forward_cost(mlp: MLP | MoE, regime: Regime) -> Cost:
    """Return the cost of an MLP, or of a router and at most as many experts as are chosen."""
    matrices = (mlp.w_gate, mlp.w_up, mlp.w_down)
    if isinstance(mlp, MLP):
        return _weights_cost(matrices, regime)
    chosen, experts = mlp.num_experts_per_tok, mlp.num_experts
    read = nbytes(*matrices) * min(regime.tokens * chosen, experts) // experts
    flops = _weights_cost(matrices, regime).flops * chosen // experts
    return _total(_weights_cost([mlp.w_router], regime), Cost(read, flops))


def _weights_cost(weights: Sequence[Weight], regime: Regime) -> Cost:
    """Return the cost of reading weights, and of a product of each token with each matrix."""
    numbers = sum(math.prod(w.shape) for w in weights if len(w.shape) > 1)
    return Cost(nbytes(*weights), 2 * regime.tokens * numbers)


CASES = {
    "MLP": mlp_cases,
    "MoE": moe_cases,
    "GroupedQueryAttention": grouped_query_attention_cases,
    "DecoderLayer": decoder_layer_cases,
}
