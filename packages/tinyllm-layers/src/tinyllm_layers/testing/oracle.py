"""Layers in float64 NumPy, written from their formulas over the oracles of `tinyllm_ops`.

The functions read the weights of a layer, but never call its `ops`.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray
from tinyllm_ops import PageTable, Weight
from tinyllm_ops.testing import exact
from tinyllm_ops.testing import oracle as ops

from tinyllm_layers.attention import GroupedQueryAttention
from tinyllm_layers.decoder import DecoderLayer
from tinyllm_layers.gated_attention import GatedAttention
from tinyllm_layers.gated_delta_net import GatedDeltaNet
from tinyllm_layers.mlp import MLP
from tinyllm_layers.moe import MoE
from tinyllm_layers.norm import RMSNorm

Array = NDArray[np.float64]
Ids = NDArray[np.integer]


def norm(x: Array, layer: RMSNorm) -> Array:
    """x / sqrt(mean(x^2) + eps) weight."""
    return ops.rms_norm(x, exact(layer.weight), layer.eps)


def attention_inputs(
    x: Array, layer: GroupedQueryAttention, positions: Ids
) -> tuple[Array, Array, Array]:
    """Return queries `B H L D`, and keys and values `B Hkv L D`.

    Args:
        x: the normalized tokens, `B L E`.
        layer: the weights.
        positions: the positions, of a shape that broadcasts to `B L`.
    """

    def heads(w: Weight, bias: mx.array | None, norm: mx.array | None) -> Array:
        y = _projected(x, w, bias).reshape(*x.shape[:2], -1, layer.head_dim)
        return y if norm is None else ops.rms_norm(y, exact(norm), layer.norm_eps)

    rope, biases = layer.rope, layer.biases
    q, k = (
        ops.rope(part, positions, rope.base, rope.traditional, rope.scaling, rope.dims)
        for part in (
            heads(layer.wq, biases.q, layer.q_norm),
            heads(layer.wk, biases.k, layer.k_norm),
        )
    )
    return q.swapaxes(1, 2), k.swapaxes(1, 2), heads(layer.wv, biases.v, None).swapaxes(1, 2)


def attention_output(heads: Array, layer: GroupedQueryAttention) -> Array:
    """Project the joined heads `B L H D` to `B L E`."""
    return _projected(heads.reshape(*heads.shape[:2], -1), layer.wo, layer.biases.o)


def attention(x: Array, layer: GroupedQueryAttention) -> Array:
    """Compute the attention layer for whole texts `B L E`, from position 0 on."""
    q, k, v = attention_inputs(x, layer, np.arange(x.shape[1]))
    return attention_output(ops.attention(q, k, v, None, "causal").swapaxes(1, 2), layer)


def gated_attention(x: Array, layer: GatedAttention) -> Array:
    """Compute attention with an output gate for whole texts `B L E`, from position 0 on."""
    heads = layer.attention
    q, k, v = attention_inputs(x, heads, np.arange(x.shape[1]))
    out = ops.attention(q, k, v, None, "causal").swapaxes(1, 2)  # B L H D
    gate = ops.sigmoid(_projected(x, layer.wg, None)).reshape(out.shape)
    return attention_output(out * gate, heads)


def gated_delta_net(x: Array, layer: GatedDeltaNet) -> Array:
    """Compute a gated DeltaNet for whole texts `B L E`, row by row."""
    rows = [_gated_delta_row(row, layer) for row in x]
    return np.stack(rows) if rows else np.zeros_like(x)


def _gated_delta_row(x: Array, layer: GatedDeltaNet) -> Array:
    """Compute a gated DeltaNet for one text `L E`."""
    length, keys = len(x), layer.num_key_heads * layer.key_dim
    heads = (length, layer.num_value_heads, layer.value_dim)
    weight = exact(layer.conv)
    empty = np.zeros((weight.shape[1] - 1, len(weight)))
    qkv, _ = ops.causal_conv(_projected(x, layer.wqkv, None), weight, empty)
    q, k = (
        part.reshape(length, -1, layer.key_dim) for part in (qkv[:, :keys], qkv[:, keys : 2 * keys])
    )
    out, _ = ops.gated_delta(
        q,
        k,
        qkv[:, 2 * keys :].reshape(heads),
        _projected(x, layer.wa, None),
        _projected(x, layer.wb, None),
        exact(layer.a_log),
        exact(layer.dt_bias),
        np.zeros((*heads[1:], layer.key_dim)),
    )
    gate = _projected(x, layer.wz, None).reshape(heads)
    normed = ops.gated_rms_norm(out, gate, exact(layer.norm), layer.norm_eps)
    return _projected(normed.reshape(length, -1), layer.wo, None)


def mixer(x: Array, layer: GroupedQueryAttention | GatedAttention | GatedDeltaNet) -> Array:
    """Compute the half of a decoder layer that reads earlier tokens, for whole texts `B L E`."""
    if isinstance(layer, GatedDeltaNet):
        return gated_delta_net(x, layer)
    if isinstance(layer, GatedAttention):
        return gated_attention(x, layer)
    return attention(x, layer)


def paged_attention(
    x: Array,
    layer: GroupedQueryAttention,
    page_table: PageTable,
    keys: Array,
    values: Array,
    window: int | None = None,
) -> tuple[Array, Array, Array]:
    """Compute the attention layer for a pass over pages.

    Args:
        x: the normalized tokens, `1 T E` or `T 1 E`.
        layer: the weights.
        page_table: the sequences and their pages.
        keys: the pages of keys before the pass, `P Hkv page D`.
        values: the pages of values before the pass, `P Hkv page D`.
        window: the number of most recent tokens that a token sees; None for all tokens.

    Returns:
        The output in the shape of x, and the pages of keys and of values after the pass.
    """
    positions = np.array(page_table.positions).reshape(x.shape[:2])
    q, k, v = attention_inputs(x, layer, positions)
    keys, values = written(keys, k, page_table), written(values, v, page_table)
    return attend_pages(q, layer, page_table, keys, values, window), keys, values


def attend_pages(
    q: Array,
    layer: GroupedQueryAttention,
    page_table: PageTable,
    keys: Array,
    values: Array,
    window: int | None = None,
) -> Array:
    """Return the output `B L E` of queries `B H L D` over pages that already hold the new keys."""
    rows = q.swapaxes(1, 2)  # B L H D
    width = max(map(len, page_table.block_tables), default=0)
    tables = [[*table, *[0] * (width - len(table))] for table in page_table.block_tables]
    out = ops.paged_attention(
        rows.reshape(-1, *rows.shape[2:]),
        keys,
        values,
        np.array(tables, dtype=np.int64).reshape(-1, width),
        np.array(page_table.cu_seqlens_q),
        np.array(page_table.seq_lens),
        window=window,
    )
    return attention_output(out.reshape(rows.shape), layer)


def written(stored: Array, heads: Array, page_table: PageTable) -> Array:
    """Return a copy of pages in which the heads `B Hkv L D` are written to their slots."""
    stored = stored.copy()
    rows = heads.swapaxes(1, 2).reshape(-1, stored.shape[1], stored.shape[3])
    for row, slot in zip(rows, page_table.slot_mapping, strict=True):
        stored[slot // page_table.page_size, :, slot % page_table.page_size] = row
    return stored


def mlp(x: Array, layer: MLP) -> Array:
    """w_down(silu(w_gate x) (w_up x))."""
    gate, up = (ops.linear(x, exact(w)) for w in (layer.w_gate, layer.w_up))
    return ops.linear(ops.swiglu(gate, up), exact(layer.w_down))


def moe(x: Array, layer: MoE) -> Array:
    """Sum the outputs of the best K experts and of the shared expert, token by token."""
    weights = ops.softmax(ops.linear(x, exact(layer.w_router)))
    gate, up, down = (exact(w) for w in (layer.w_gate, layer.w_up, layer.w_down))
    y = np.zeros_like(x)
    for token in np.ndindex(x.shape[:-1]):
        best = np.argsort(-weights[token], kind="stable")[: layer.num_experts_per_tok]
        total = weights[token][best].sum() if layer.norm_topk_prob else 1.0
        for expert in best:
            gated = ops.swiglu(gate[expert] @ x[token], up[expert] @ x[token])
            y[token] += weights[token][expert] / total * (down[expert] @ gated)
    if layer.shared is None or layer.shared_gate is None:
        return y
    gate = ops.sigmoid(ops.linear(x, exact(layer.shared_gate)))
    return np.asarray(y + gate * mlp(x, layer.shared))


def feed_forward(x: Array, layer: MLP | MoE) -> Array:
    """Compute the feed-forward half of a decoder layer, without its norm and its residual."""
    return mlp(x, layer) if isinstance(layer, MLP) else moe(x, layer)


def decoder_layer(x: Array, layer: DecoderLayer) -> Array:
    """Return the output of a layer for whole texts `B L E`, as with empty dense caches."""
    h = x + mixer(norm(x, layer.input_norm), layer.mixer)
    return h + feed_forward(norm(h, layer.post_attention_norm), layer.mlp)


def decoder_layers(x: Array, layers: Sequence[DecoderLayer]) -> Array:
    """Return the output of a stack of layers."""
    for layer in layers:
        x = decoder_layer(x, layer)
    return x


def _projected(x: Array, w: Weight, bias: mx.array | None) -> Array:
    return ops.linear(x, exact(w), None if bias is None else exact(bias))
