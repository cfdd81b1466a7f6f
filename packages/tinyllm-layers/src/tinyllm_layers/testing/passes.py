"""Passes over texts in chunks, like the chunks of a prompt and the decode steps after it."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import PageTable

from tinyllm_layers.backend import Stack
from tinyllm_layers.batch import Batch
from tinyllm_layers.cache.base import KVCache
from tinyllm_layers.cache.paged import PagedCache


def run_chunks(
    stack: Stack,
    x: Float[mx.array, "B L E"],
    caches: Sequence[KVCache],
    lengths: Sequence[int] | None = None,
) -> Float[mx.array, "B L E"]:
    """Run a stack over a text in chunks, and return the output of all tokens.

    Args:
        stack: any stack, such as `LayerStack(layers)`.
        x: the embedded tokens. They follow the tokens in the caches.
        caches: one cache per layer.
        lengths: the number of tokens of each chunk, L in all. Unless given, x is one chunk. A chunk
            of one token is a decode step.
    """
    lengths = [x.shape[1]] if lengths is None else lengths
    before, rows = caches[0].offset, x.shape[0]
    outs = [
        stack(x[:, first:stop], Batch.at(before + first, rows, stop - first), caches)
        for first, stop in pairwise([0, *accumulate(lengths)])
    ]
    return mx.concatenate(outs, axis=1)


def paged_batches(
    pages: Sequence[Sequence[int]],
    lengths: Sequence[int],
    *,
    num_pages: int,
    page_size: int,
) -> list[Batch]:
    """Make the batches of several texts that are computed together, chunk by chunk.

    All texts have one length. Chunks of one token are decode steps, longer chunks are prefilled.

    Args:
        pages: the pages of each text.
        lengths: the number of tokens of each chunk.
        num_pages: P.
        page_size: the number of tokens in a page.
    """
    return [
        Batch.paged(
            PageTable.of(
                [(block_table, first, stop) for block_table in pages],
                num_pages=num_pages,
                page_size=page_size,
            ),
            "decode" if stop - first == 1 else "prefill",
        )
        for first, stop in pairwise([0, *accumulate(lengths)])
    ]


def run_pages(
    stack: Stack,
    x: Float[mx.array, "R L E"],
    caches: Sequence[PagedCache],
    batches: Sequence[Batch],
) -> Float[mx.array, "R L E"]:
    """Run a stack over R texts with paged caches, and return the output of all tokens.

    Args:
        stack: any stack.
        x: the embedded tokens.
        caches: one cache per layer.
        batches: the batches of `paged_batches` for the R texts.
    """
    outs, first = [], 0
    for batch in batches:
        assert batch.page_table is not None  # paged_batches makes them
        stop = first + batch.page_table.count // len(x)
        chunk = x[:, first:stop]
        out = stack(chunk.reshape(batch.rows, batch.length, -1), batch, caches)
        outs.append(out.reshape(chunk.shape))
        first = stop
    return mx.concatenate(outs, axis=1)
