"""Halves of a transformer block with random weights, and what they compute, in float64."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tinyllm_ops.attention_block import AttentionBlock
from tinyllm_ops.contract import Weight
from tinyllm_ops.mlp_block import MlpBlock
from tinyllm_ops.moe_block import MoeBlock
from tinyllm_ops.norm import Norm
from tinyllm_ops.paged_tokens import PagedTokens
from tinyllm_ops.projection import Projection
from tinyllm_ops.quantization import quantize
from tinyllm_ops.rotary import Rotary
from tinyllm_ops.testing import oracle
from tinyllm_ops.testing.arrays import exact, normal

Array = NDArray[np.float64]
_ROTARY = Rotary(1e6)


def weight(rows: int, columns: int, dtype: mx.Dtype, seed: int, bits: int | None = None) -> Weight:
    """A matrix under which numbers keep their size, packed in groups of 32 if `bits` says so."""
    dense = normal((rows, columns), dtype, seed=seed, magnitude=columns**-0.5)
    return dense if bits is None else quantize(dense, 32, bits)


def norm(dim: int, dtype: mx.Dtype, seed: int) -> Norm:
    """Weights around 1, as trained ones are."""
    return Norm(1 + normal((dim,), dtype, seed=seed, magnitude=0.1), 1e-6)


def mlp_block(dim: int, hidden: int, dtype: mx.Dtype, bits: int | None = None) -> MlpBlock:
    """An MLP of E = dim and F = hidden."""
    gate, up = (weight(hidden, dim, dtype, seed, bits) for seed in (41, 42))
    return MlpBlock(norm(dim, dtype, 40), gate, up, weight(dim, hidden, dtype, 43, bits))


def moe_block(
    dim: int,
    hidden: int,
    experts: int,
    chosen: int,
    dtype: mx.Dtype,
    bits: int | None = None,
    *,
    norm_topk_prob: bool = True,
) -> MoeBlock:
    """X experts of E = dim and F = hidden, of which a token goes to K = chosen."""

    def stack(rows: int, columns: int, seed: int) -> Weight:
        dense = normal((experts, rows, columns), dtype, seed=seed, magnitude=columns**-0.5)
        return dense if bits is None else quantize(dense, 32, bits)

    router = normal((experts, dim), dtype, seed=61, magnitude=0.5)
    return MoeBlock(
        norm(dim, dtype, 60),
        router if bits is None else quantize(router, 32, 8),  # as MLX's checkpoints have it
        stack(hidden, dim, 62),
        stack(hidden, dim, 63),
        stack(dim, hidden, 64),
        chosen,
        norm_topk_prob,
    )


def attention_block(
    dim: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: mx.Dtype,
    *,
    bits: int | None = None,
    biased: bool = False,
    normed: bool = False,
    rotary: Rotary = _ROTARY,
) -> AttentionBlock:
    """Attention of E = dim, with biases as Qwen2 has them, or head norms as Qwen3 has them."""

    def projection(rows: int, columns: int, seed: int) -> Projection:
        bias = normal((rows,), dtype, seed=seed + 10) if biased else None
        return Projection(weight(rows, columns, dtype, seed, bits), bias)

    width, kv_width = heads * head_dim, kv_heads * head_dim
    return AttentionBlock(
        norm(dim, dtype, 50),
        projection(width, dim, 51),
        projection(kv_width, dim, 52),
        projection(kv_width, dim, 53),
        projection(dim, width, 54),
        head_dim,
        rotary,
        norm(head_dim, dtype, 55) if normed else None,
        norm(head_dim, dtype, 56) if normed else None,
    )


def mlp_block_oracle(x: Array, block: MlpBlock) -> Array:
    """x + down(silu(gate n) * (up n)) for n = norm(x), or without the first x."""
    normal = _normalized(x, block.norm)
    gate, up = (oracle.linear(normal, exact(w)) for w in (block.gate, block.up))
    y = oracle.linear(oracle.swiglu(gate, up), exact(block.down))
    return x + y if block.residual else y


def moe_block_oracle(x: Array, block: MoeBlock) -> Array:
    """Token by token, expert by expert."""
    normal = x if block.norm is None else _normalized(x, block.norm)
    shares = oracle.softmax(oracle.linear(normal, exact(block.router)))
    gate, up, down = (exact(w) for w in (block.gate, block.up, block.down))
    y = np.zeros_like(x)
    for token in np.ndindex(x.shape[:-1]):
        best = np.argsort(-shares[token], kind="stable")[: block.num_experts_per_tok]
        total = shares[token][best].sum() if block.norm_topk_prob else 1.0
        for expert in best:
            gated = oracle.swiglu(gate[expert] @ normal[token], up[expert] @ normal[token])
            y[token] += shares[token][expert] / total * (down[expert] @ gated)
    return x + y if block.residual else y


def attention_inputs_oracle(
    x: Array, block: AttentionBlock, positions: NDArray[np.integer]
) -> tuple[Array, Array, Array]:
    """Queries `B H L D`, keys and values `B Hkv L D`."""
    x = x if block.norm is None else _normalized(x, block.norm)

    def heads(projection: Projection, norm: Norm | None) -> Array:
        y = _projected(x, projection).reshape(*x.shape[:2], -1, block.head_dim)
        return y if norm is None else _normalized(y, norm)

    rotary = block.rotary
    q, k = (
        oracle.rope(part, positions, rotary.base, rotary.traditional, rotary.scaling)
        for part in (heads(block.q, block.q_norm), heads(block.k, block.k_norm))
    )
    return q.swapaxes(1, 2), k.swapaxes(1, 2), heads(block.v, None).swapaxes(1, 2)


def attention_block_oracle(x: Array, block: AttentionBlock) -> Array:
    """What a whole text becomes, from its first token on."""
    q, k, v = attention_inputs_oracle(x, block, np.arange(x.shape[1]))
    return _output(x, oracle.attention(q, k, v, None, "causal").swapaxes(1, 2), block)


def paged_attention_block_oracle(
    x: Array, block: AttentionBlock, keys: Weight, values: Weight, pages: PagedTokens
) -> Array:
    """What tokens become that read pages in which their own keys and values are already."""
    positions = np.array(pages.positions).reshape(x.shape[:2])
    q = attention_inputs_oracle(x, block, positions)[0].swapaxes(1, 2)  # B L H D
    heads = oracle.paged_attention(
        q.reshape(-1, *q.shape[2:]),
        exact(keys),
        exact(values),
        np.array(pages.block_table),
        np.array(pages.query_starts),
        np.array(pages.context_lengths),
        window=pages.window,
    )
    return _output(x, heads, block)


def _output(x: Array, heads: Array, block: AttentionBlock) -> Array:
    """What the heads of all tokens, `B L H D` or as many rows, give."""
    y = _projected(heads.reshape(*x.shape[:2], -1), block.o)
    return x + y if block.residual else y


def _projected(x: Array, projection: Projection) -> Array:
    bias = None if projection.bias is None else exact(projection.bias)
    return oracle.linear(x, exact(projection.weight), bias)


def _normalized(x: Array, norm: Norm) -> Array:
    return oracle.rms_norm(x, exact(norm.weight), norm.eps)
