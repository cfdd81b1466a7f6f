"""Attention over dense and quantized keys, in pages or not, in the extension."""

from __future__ import annotations

from types import ModuleType

import mlx.core as mx
from jaxtyping import Float, Int32
from tinyllm_ops import Weight
from tinyllm_ops.contract import check_attention, check_paged_attention
from tinyllm_ops.protocols import Attention, PagedAttention

from tinyllm_kernels.arguments import array, weight


def attention_of(native: ModuleType) -> Attention:
    """Attention whose kernels are those of the extension `native`."""

    def attention(
        q: Float[mx.array, "*batch H L D"],
        k: Weight,
        v: Weight,
        scale: float | None = None,
        mask: Float[mx.array, "..."] | str | None = None,
        *,
        phase: str | None = None,
    ) -> Float[mx.array, "*batch H L D"]:
        """Keys and values are read where the cache has them, once for all heads of a group."""
        check_attention(q, k, v, mask)
        *batch, heads, length, dim = q.shape
        keys = k.shape[-2]
        if q.size == 0 or keys == 0:
            return mx.zeros(q.shape, q.dtype)
        scale = dim**-0.5 if scale is None else scale
        added = None
        if isinstance(mask, mx.array):
            added = _four_axes(mx.broadcast_to(mask, (*batch, heads, length, keys)))
        causal = isinstance(mask, str)
        out = native.attention(_four_axes(q), _stored(k), _stored(v), scale, causal, added, phase)
        return array(out).reshape(q.shape) if q.ndim != 4 else array(out)

    return attention


def paged_attention_of(native: ModuleType) -> PagedAttention:
    """Paged attention whose kernels are those of the extension `native`."""

    def paged_attention(
        q: Float[mx.array, "T H D"],
        k: Weight,
        v: Weight,
        block_table: Int32[mx.array, "R blocks"],
        query_starts: Int32[mx.array, "R+1"],
        context_lengths: Int32[mx.array, "R"],
        scale: float | None = None,
        window: int | None = None,
        *,
        phase: str | None = None,
    ) -> Float[mx.array, "T H D"]:
        """Pages are read in place; nothing comes back to the host."""
        check_paged_attention(q, k, v, block_table, query_starts, context_lengths, window)
        if q.size == 0 or k.shape[0] == 0 or block_table.size == 0:
            return mx.zeros(q.shape, q.dtype)
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        where = (block_table, query_starts, context_lengths)
        out = native.paged_attention(q, _stored(k), _stored(v), *where, scale, window or 0, phase)
        return array(out)

    return paged_attention


def _four_axes(x: mx.array) -> mx.array:
    """All leading axes as one; an array that has one is left alone, since a view may be a copy."""
    return x if x.ndim == 4 else x.reshape(-1, *x.shape[-3:])


def _stored(x: Weight) -> tuple[object, ...]:
    """Keys or values as the extension takes them."""
    return weight(_four_axes(x) if isinstance(x, mx.array) else x.map(_four_axes))
