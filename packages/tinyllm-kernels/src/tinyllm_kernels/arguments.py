"""Values of the contract as the extension takes them: arrays, numbers and tuples of these."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

import mlx.core as mx
from tinyllm_ops import (
    AttentionBlock,
    MlpBlock,
    MoeBlock,
    Norm,
    PagedTokens,
    Positions,
    QuantizedTensor,
    Weight,
    Yarn,
)
from tinyllm_ops.positions import position_array, slice_start
from tinyllm_ops.rotary_frequencies import rotary_frequencies

from tinyllm_kernels.interleaved_tensor import InterleavedTensor


def array(value: object) -> mx.array:
    """What a call of the extension or of a Metal kernel returns, which has no types of its own."""
    assert isinstance(value, mx.array)
    return value


def arrays(values: list[object]) -> list[mx.array]:
    """Several of them."""
    return [array(value) for value in values]


def weight(w: Weight) -> tuple[object, ...]:
    """Numbers or codes, scales, biases; group size, bits and mode; rows side by side."""
    if isinstance(w, InterleavedTensor):
        return *w.interleaved, w.group_size, w.bits, w.mode, w.rows
    if isinstance(w, QuantizedTensor):
        return w.packed, w.scales, w.biases, w.group_size, w.bits, w.mode, 0
    return w, None, None, 0, 0, "", 0


def parts(w: Weight) -> tuple[mx.array, ...]:
    """The arrays that a weight consists of, as they lie in memory."""
    if isinstance(w, InterleavedTensor):
        return w.interleaved
    return w.arrays if isinstance(w, QuantizedTensor) else (w,)


def like(w: Weight, made: Sequence[mx.array]) -> Weight:
    """A weight in the format of `w`, of other arrays."""
    if isinstance(w, mx.array):
        return made[0]
    packed, scales, biases = made
    return replace(w, packed=packed, scales=scales, biases=biases)


def paged_tokens(pages: PagedTokens) -> tuple[mx.array, ...]:
    """All of its arrays."""
    return (
        pages.block_table,
        pages.query_starts,
        pages.context_lengths,
        pages.positions,
        pages.slots,
    )


def norm(n: Norm | None) -> tuple[mx.array | None, float]:
    """Weight and eps."""
    return (None, 0.0) if n is None else (n.weight, n.eps)


def attention_weights(native: ModuleType, block: AttentionBlock) -> object:
    """An attention block, told to the extension once."""
    rotary = block.rotary
    turns = frequencies(block.head_dim, rotary.base, rotary.scaling)
    return native.AttentionWeights(
        norm(block.norm),
        *((weight(p.weight), p.bias) for p in (block.q, block.k, block.v, block.o)),
        head_dim=block.head_dim,
        rotary=(turns, rotary.traditional, magnitude(rotary.scaling)),
        q_norm=norm(block.q_norm),
        k_norm=norm(block.k_norm),
        residual=block.residual,
    )


def mlp_weights(native: ModuleType, block: MlpBlock) -> object:
    """An MLP block, told to the extension once."""
    weights = (weight(w) for w in (block.gate, block.up, block.down))
    return native.mlp_weights(norm(block.norm), *weights, residual=block.residual)


def moe_weights(native: ModuleType, block: MoeBlock) -> object:
    """A mixture of experts, told to the extension once."""
    weights = (weight(w) for w in (block.router, block.gate, block.up, block.down))
    return native.moe_weights(
        norm(block.norm),
        *weights,
        chosen=block.num_experts_per_tok,
        shares_add_to_1=block.norm_topk_prob,
        residual=block.residual,
    )


def positions(where: Positions, batch: int, length: int) -> mx.array:
    """Positions as int32, `1 L` or `B L`; a slice becomes a constant, which costs no primitive."""
    if isinstance(where, slice):
        start = slice_start(where, length)
        return mx.array([list(range(start, start + length))], dtype=mx.int32)
    return position_array(where, batch, length).astype(mx.int32)


@functools.cache
def frequencies(dim: int, base: float, scaling: Yarn | None) -> mx.array:
    """Radians a token for each pair."""
    return mx.array(rotary_frequencies(dim, base, scaling), dtype=mx.float32)


def magnitude(scaling: Yarn | None) -> float:
    """What multiplies queries and keys beside the rotation."""
    return 1.0 if scaling is None else scaling.magnitude
