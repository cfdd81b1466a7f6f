"""The parts of a decoder layer, and the whole of it, with the cases that they are timed with.

An `MLP`, a `MoE` or a `GroupedQueryAttention` that is called directly computes one op after the
other. A `DecoderLayer` is computed by the stack of the OpSet, as in a model.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import mlx.core as mx
import numpy as np
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
from tinyllm_qwen.layers_from_weights import decoder_layer
from tinyllm_qwen.parallel.groups import ParallelGroups

from tinyllm_bench.cost import Cost, attention_flops, causal_pairs
from tinyllm_bench.matrix_cases import CHOSEN, EXPERTS, made_up_experts
from tinyllm_bench.op_case import Call, OpCase, Regime, Work, activations, nbytes
from tinyllm_bench.prepared_layers import PreparedLayers, prepare
from tinyllm_bench.random_weights import random_floats
from tinyllm_bench.subject import Subject
from tinyllm_bench.vector_cases import PAGE_SIZE, page_table

Half = TypeVar("Half", MLP, MoE)

_CACHE_BITS = 8


def mlp_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """The feed-forward half of a layer; no cases where each layer is a mixture of experts."""
    mlps = _of_type(_layers(subject, REFERENCE), MLP)
    if not mlps:
        return []

    def work(regime: Regime) -> Work:
        prepared = PreparedLayers(lambda ops: _of_type(_layers(subject, ops), MLP))
        return _half_work(subject, regime, prepared, _mlp_cost(mlps[0], regime.tokens))

    return _cases("MLP", f"{mlps[0].hidden_dim}x{mlps[0].dim}", regimes, work)


def moe_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """The mixture of experts of the model; one of made-up experts where the model has none."""
    own = _of_type(_layers(subject, REFERENCE), MoE)
    first = own[0] if own else _made_up_moe(subject, REFERENCE)

    def made(ops: OpSet) -> list[MoE]:
        return _of_type(_layers(subject, ops), MoE) if own else [_made_up_moe(subject, ops)]

    def work(regime: Regime) -> Work:
        return _half_work(subject, regime, PreparedLayers(made), _mlp_cost(first, regime.tokens))

    size = f"{first.num_experts_per_tok} of {first.num_experts}x{first.hidden_dim}x{first.dim}"
    return _cases("MoE", size, regimes, work)


def grouped_query_attention_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """The attention half of a layer over a dense cache."""

    def work(regime: Regime) -> Work:
        caches, batch = _own_caches(subject, regime, DenseCache), _batch(regime)
        prepared = PreparedLayers(lambda ops: [x.attention for x in _layers(subject, ops)])
        x = _input(subject, regime)

        def call(ops: OpSet, i: int) -> mx.array:
            cache = _rewound(caches[i % len(caches)], regime)
            return prepared.of(ops, i)(x, batch, cache, residual=x)

        cost = Cost(2 * nbytes(x)) + _attention_cost(subject, regime)
        return Work(_pass_by_pass(call, len(caches)), cost)

    config = subject.config
    heads = f"{config.num_attention_heads}/{config.num_key_value_heads} heads"
    return _cases("GroupedQueryAttention", f"{heads} of {config.head_dim}", regimes, work)


def decoder_layer_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """A whole layer over each kind of cache."""
    return (
        _cases("DecoderLayer", "dense", regimes, lambda r: _dense_work(subject, r, DenseCache))
        + _cases("DecoderLayer", f"pages of {PAGE_SIZE}", regimes, lambda r: _paged(subject, r))
        + _quantized_cases(subject, regimes)
    )


def _quantized_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    group = next((size for size in (64, 32) if subject.config.head_dim % size == 0), None)
    if group is None:
        return []  # the model can have no quantized cache
    scales = 2 * subject.form.dtype.size / group

    def work(regime: Regime) -> Work:
        return _dense_work(
            subject,
            regime,
            lambda: QuantizedCache(_CACHE_BITS, group),
            key_bytes=_CACHE_BITS / 8 + scales,
        )

    return _cases("DecoderLayer", f"{_CACHE_BITS}-bit", regimes, work)


def _dense_work(
    subject: Subject,
    regime: Regime,
    make: Callable[[], KVCache],
    key_bytes: float | None = None,
) -> Work:
    """A layer over caches whose rows stay in step.

    Args:
        subject: the model.
        regime: the tokens.
        make: an empty cache.
        key_bytes: of one number in the cache; those of the dtype unless given.
    """
    caches, batch = _own_caches(subject, regime, make), _batch(regime)
    stacks = PreparedLayers(
        lambda ops: [make_stack([layer], ops) for layer in _layers(subject, ops)]
    )
    x = _input(subject, regime)

    def call(ops: OpSet, i: int) -> mx.array:
        cache = _rewound(caches[i % len(caches)], regime)
        return stacks.of(ops, i)(x, batch, [cache])

    return Work(_pass_by_pass(call, len(caches)), _layer_cost(subject, regime, x, key_bytes))


def _paged(subject: Subject, regime: Regime) -> Work:
    """A layer over pages, each text with pages of its own."""
    config, table = subject.config, page_table(regime, PAGE_SIZE)
    batch = Batch.paged(table, regime.phase)
    shape = (table.num_pages, config.num_key_value_heads, PAGE_SIZE, config.head_dim)
    dtype = subject.form.dtype
    caches = [
        PagedCache(activations(*shape, dtype=dtype), activations(*shape, dtype=dtype))
        for _ in range(config.num_hidden_layers)
    ]
    stacks = PreparedLayers(
        lambda ops: [make_stack([layer], ops) for layer in _layers(subject, ops)]
    )
    x = _input(subject, regime).reshape(batch.rows, batch.length, -1)

    def call(ops: OpSet, i: int) -> mx.array:
        return stacks.of(ops, i)(x, batch, [caches[i % len(caches)]])

    return Work(_pass_by_pass(call, len(caches)), _layer_cost(subject, regime, x))


def _half_work(
    subject: Subject, regime: Regime, prepared: PreparedLayers[Half], cost: Cost
) -> Work:
    """An MLP or a mixture of experts, with the residual that it adds."""
    x = _input(subject, regime)

    def call(ops: OpSet, i: int) -> mx.array:
        return prepared.of(ops, i)(x, residual=x, phase=regime.phase)

    return Work(call, Cost(2 * nbytes(x)) + cost)


def _layers(subject: Subject, ops: OpSet) -> list[DecoderLayer]:
    """The layers of the model with weights prepared for an OpSet."""
    config = subject.config
    weights = {name: w for name, w in subject.weights.items() if name.startswith("layers.")}
    prepare(ops, weights)
    groups = ParallelGroups.single(config)
    layers = range(config.num_hidden_layers)
    return [decoder_layer(config, weights, index, groups, ops) for index in layers]


def _of_type(layers: Sequence[DecoderLayer], kind: type[Half]) -> list[Half]:
    return [layer.mlp for layer in layers if isinstance(layer.mlp, kind)]


def _made_up_moe(subject: Subject, ops: OpSet) -> MoE:
    """A mixture of experts in the format of the model, about as large as two projections."""
    width, form = subject.config.hidden_size, subject.form
    group = form.group_size if form.packed else 1
    hidden = max(1, subject.config.intermediate_size // 4 // group) * group
    weights: dict[str, Weight] = {
        "w_router": random_floats((EXPERTS, width), form.dtype, np.random.default_rng(2)),
        "w_gate": made_up_experts(subject, (EXPERTS, hidden, width)),
        "w_up": made_up_experts(subject, (EXPERTS, hidden, width)),
        "w_down": made_up_experts(subject, (EXPERTS, width, hidden)),
    }
    prepare(ops, weights)
    return MoE(
        width,
        hidden,
        EXPERTS,
        CHOSEN,
        weights["w_router"],
        weights["w_gate"],
        weights["w_up"],
        weights["w_down"],
        ops=ops,
    )


def _input(subject: Subject, regime: Regime) -> mx.array:
    width = subject.config.hidden_size
    return activations(regime.rows, regime.length, width, dtype=subject.form.dtype)


def _batch(regime: Regime) -> Batch:
    offset = regime.keys - regime.length
    return Batch.at(offset, regime.rows, regime.length, regime.phase)


def _own_caches(subject: Subject, regime: Regime, make: Callable[[], KVCache]) -> list[KVCache]:
    """One cache a layer, which holds the keys before the new tokens."""
    config = subject.config
    caches = [make() for _ in range(config.num_hidden_layers)]
    before = regime.keys - regime.length
    if before:
        shape = (regime.rows, config.num_key_value_heads, before, config.head_dim)
        k, v = (activations(*shape, dtype=subject.form.dtype) for _ in range(2))
        for cache in caches:
            cache.update(k, v)
        mx.eval([array for cache in caches for array in cache.arrays])
    return caches


def _rewound(cache: KVCache, regime: Regime) -> KVCache:
    """The cache without the tokens of earlier calls."""
    cache.trim(regime.keys - regime.length)
    return cache


def _pass_by_pass(call: Callable[[OpSet, int], mx.array], layers: int) -> Call:
    """Compute each pass over the layers before the next one writes to the same caches.

    Otherwise one graph would write to a cache twice, and MLX would copy the cache.
    """
    pending: list[mx.array] = []

    def computed(ops: OpSet, i: int) -> mx.array:
        if i % layers == 0:
            mx.eval(pending)
            pending.clear()
        y = call(ops, i)
        pending.append(y)
        return y

    return computed


def _layer_cost(
    subject: Subject, regime: Regime, x: mx.array, key_bytes: float | None = None
) -> Cost:
    layer = _layers(subject, REFERENCE)[0]
    norms = nbytes(layer.input_norm.weight, layer.post_attention_norm.weight)
    return (
        Cost(2 * nbytes(x) + norms)
        + _attention_cost(subject, regime, key_bytes)
        + _mlp_cost(layer.mlp, regime.tokens)
    )


def _attention_cost(subject: Subject, regime: Regime, key_bytes: float | None = None) -> Cost:
    """The weights of the first layer's attention, and the keys and values that it reads."""
    config, attention = subject.config, _layers(subject, REFERENCE)[0].attention
    weights = weights_of(attention)
    each = subject.form.dtype.size if key_bytes is None else key_bytes
    numbers = 2 * regime.rows * config.num_key_value_heads * regime.keys * config.head_dim
    pairs = regime.rows * causal_pairs(regime.length, regime.keys)
    products = sum(math.prod(w.shape) for w in weights if len(w.shape) > 1)
    return Cost(
        nbytes(*weights) + int(numbers * each),
        2 * regime.tokens * products
        + attention_flops(config.num_attention_heads, config.head_dim, pairs),
    )


def _mlp_cost(mlp: MLP | MoE, tokens: int) -> Cost:
    """All weights of an MLP; of experts the router, and at most as many experts as are chosen."""
    matrices = (mlp.w_gate, mlp.w_up, mlp.w_down)
    numbers = sum(math.prod(w.shape) for w in matrices)
    if isinstance(mlp, MLP):
        return Cost(nbytes(*matrices), 2 * tokens * numbers)
    chosen, all_experts = mlp.num_experts_per_tok, mlp.num_experts
    read = nbytes(*matrices) * min(tokens * chosen, all_experts) // all_experts
    router = math.prod(mlp.w_router.shape)
    return Cost(
        nbytes(mlp.w_router) + read,
        2 * tokens * (router + numbers * chosen // all_experts),
    )


def _cases(
    name: str, operand: str, regimes: Sequence[Regime], work: Callable[[Regime], Work]
) -> list[OpCase]:
    """One case a regime."""

    def case(regime: Regime) -> OpCase:
        return OpCase(name, operand, regime, lambda: work(regime))

    return [case(regime) for regime in regimes]
