"""Attention over keys and values in pages (Kwon et al. 2023), many requests side by side."""

from __future__ import annotations

import math
from typing import cast

import mlx.core as mx
from jaxtyping import Float, Int32

from tinyllm_ops.attention import scaled_dot_product_attention_grouped
from tinyllm_ops.contract import Weight, check_paged_attention
from tinyllm_ops.protocols import Attention


def paged_attention(
    q: Float[mx.array, "T H D"],
    k: Weight,
    v: Weight,
    block_table: Int32[mx.array, "R blocks"],
    query_starts: Int32[mx.array, "R+1"],
    context_lengths: Int32[mx.array, "R"],
    scale: float | None = None,
    window: int | None = None,
) -> Float[mx.array, "T H D"]:
    """softmax(q k^T * scale) v for R requests, whose tokens stand one after the other in q.

    Request r owns the n rows of q from query_starts[r] to query_starts[r + 1]: a chunk of a prompt,
    or the one token that is being decoded. Its query i sees the keys up to context - n + i of the
    context = context_lengths[r] that it has, its own new tokens included. Key j of them is in slot
    j % page of page block_table[r, j // page].

    The reference goes from request to request, and reads the last three arrays back to the host for
    it; faster implementations do not.

    Args:
        q: queries of all requests.
        k: pages of keys, `P Hkv page D`, dense or quantized. Requests may share pages.
        v: pages of values, like k.
        block_table: the pages of each request in order; entries past its keys are not looked at.
        query_starts: where the queries of each request begin, and where those of the last one end.
            Rows of q that are nobody's give zeros.
        context_lengths: keys of each request.
        scale: 1/sqrt(D) unless given.
        window: how many keys a query sees at most, the most recent ones, its own among them.

    Raises:
        ValueError: if shapes do not fit or H is no multiple of Hkv.
    """
    check_paged_attention(q, k, v, block_table, query_starts, context_lengths, window)
    where = (block_table, query_starts, context_lengths)
    return by_request(scaled_dot_product_attention_grouped, q, k, v, *where, scale, window)


def by_request(
    attend: Attention,
    q: mx.array,
    k: Weight,
    v: Weight,
    block_table: mx.array,
    query_starts: mx.array,
    context_lengths: mx.array,
    scale: float | None,
    window: int | None,
) -> mx.array:
    """`attend` for one request after the other, over a copy of its keys and values."""
    starts, contexts = (cast(list[int], x.tolist()) for x in (query_starts, context_lengths))
    page = k.shape[-2]
    rows = [mx.zeros_like(q[: starts[0]])]
    for request, context in enumerate(contexts):
        mine = q[starts[request] : starts[request + 1]].swapaxes(0, 1)  # H n D
        pages = block_table[request, : math.ceil(context / page)]
        keys, values = (_joined(x, pages, context) for x in (k, v))
        mask = _visible(mine.shape[1], context, window)
        rows.append(attend(mine, keys, values, scale, mask).swapaxes(0, 1))
    rows.append(mx.zeros_like(q[starts[-1] :]))
    return mx.concatenate(rows)


def _joined(x: Weight, pages: mx.array, context: int) -> Weight:
    """The tokens in some pages, one after the other, up to a context's end."""

    def join(part: mx.array) -> mx.array:
        _, heads, page, width = part.shape
        tokens = part[pages].swapaxes(0, 1)  # Hkv blocks page width
        return tokens.reshape(heads, pages.size * page, width)[:, :context]

    return join(x) if isinstance(x, mx.array) else x.map(join)


def _visible(length: int, context: int, window: int | None) -> mx.array | str:
    """The causal mask of a request, cut off where the window ends."""
    if window is None:
        return "causal"
    behind = mx.arange(length)[:, None] + (context - length) - mx.arange(context)
    return mx.where((behind >= 0) & (behind < window), 0, -mx.inf).astype(mx.float32)
