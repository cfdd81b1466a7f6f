"""The native stack, which computes several decoder layers in one primitive of MLX.

MLX needs some microseconds to pass a primitive to the thread of its stream, and each product on
several threads ends in a barrier. For a single token, the ops of a layer are so small that these
costs exceed the time of the ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import mlx.core as mx
from jaxtyping import Float
from tinyllm_layers import Batch, DecoderLayer, DenseCache, LayerCache, PagedCache
from tinyllm_layers.decoder import check_caches
from tinyllm_ops import PageTable, Positions
from tinyllm_ops.checks import require_shape

from tinyllm_kernels.cpu.copies import CopyWatch
from tinyllm_kernels.cpu.handles import LayerHandle, is_written_natively, layer_handle
from tinyllm_kernels.cpu.runs import run_dense, run_halves, run_paged


@dataclass(frozen=True)
class Path:
    """A choice of the implementation that computes a layer in one pass.

    Consecutive layers with equal paths form a run.

    Attributes:
        kind: "dense" and "paged" compute whole layers in the extension, several in one primitive.
            "halves" computes projections and MLP or MoE natively, and calls the cache for
            attention. "layer" calls the layer itself.
        offset: for "dense", the number of tokens in each cache of the run.
        window: for "paged", the window of each cache of the run.
    """

    kind: Literal["dense", "paged", "halves", "layer"]
    offset: int = 0
    window: int | None = None


HALVES, LAYER = Path("halves"), Path("layer")


class NativeStack:
    """The stack of decoder layers for CPUs, with the results of `LayerStack` over the same ops.

    For dense models the bits of both stacks are equal. For mixtures of experts the results agree
    within rounding. The constructor reads the weights of the layers once.

    Attributes:
        layers: the layers, in the order of computation.
    """

    def __init__(self, layers: Sequence[DecoderLayer]) -> None:
        """Make the handles of all layers, which evaluates their weights."""
        self.layers = tuple(layers)
        self._handles = [layer_handle(layer) for layer in self.layers]
        # Layers of one model have equal RoPE settings: keep one RoPE for each `seq_len` to check.
        ropes = [handle.layer.attention.rope for handle in self._handles if handle is not None]
        self._ropes = list({rope.seq_len: rope for rope in ropes}.values())
        self._copies = CopyWatch()

    def __call__(
        self, x: Float[mx.array, "B L E"], batch: Batch, caches: Sequence[LayerCache]
    ) -> Float[mx.array, "B L E"]:
        """Compute L new tokens of each row.

        Args:
            x: the embedded tokens.
            batch: the layout of the pass.
            caches: one cache per layer, to which the new tokens are appended.

        Raises:
            ValueError: if the number of caches is not the number of layers, x does not have the
                rows and tokens of the batch, or a position lies beyond the context.
        """
        check_caches(self.layers, caches)
        require_shape("x", x, (batch.rows, batch.length, x.shape[-1]))
        for rope in self._ropes:
            rope.check(batch.positions, batch.length)
        self._copies.check()
        paths = [
            choose_path(x, batch, handle, cache)
            for handle, cache in zip(self._handles, caches, strict=True)
        ]
        for path, run in groupby(range(len(paths)), key=paths.__getitem__):
            indices = list(run)
            x = self._run(x, batch, path, slice(indices[0], indices[-1] + 1), caches)
        return x

    def _run(
        self,
        x: mx.array,
        batch: Batch,
        path: Path,
        span: slice,
        caches: Sequence[LayerCache],
    ) -> mx.array:
        """Compute the layers `span`, which all have the path `path`."""
        run = caches[span]
        if path.kind == "layer":
            for layer, cache in zip(self.layers[span], run, strict=True):
                x = layer(x, batch, cache)
            return x
        handles = [handle for handle in self._handles[span] if handle is not None]
        if path.kind == "dense":
            dense = [cache for cache in run if isinstance(cache, DenseCache)]
            return run_dense(x, batch, handles, dense, path.offset)
        if path.kind == "paged" and batch.pages is not None:
            paged = [cache for cache in run if isinstance(cache, PagedCache)]
            return run_paged(x, batch, batch.pages, handles, paged, path.window)
        for handle, cache in zip(handles, run, strict=True):
            x = run_halves(x, batch, handle, cache)
        return x


def choose_path(
    x: Float[mx.array, "B L E"],
    batch: Batch,
    handle: LayerHandle | None,
    cache: LayerCache,
) -> Path:
    """Choose the fastest path that gives the result of the layer itself.

    If x, batch and cache do not fit together, the ops of the chosen path raise the error. The paths
    "dense" and "paged" need exactly `DenseCache` and `PagedCache`, because a subclass may override
    `attend`.
    """
    if handle is None or x.size == 0 or x.dtype != handle.dtype:
        return LAYER
    if x.shape[-1] != handle.layer.attention.hidden_size:
        return LAYER
    if handle.whole and type(cache) is DenseCache and batch.pages is None:
        offset = cache.offset
        if _starts_at(batch.positions, offset, batch.length):
            return Path("dense", offset=offset)
    if (
        handle.whole
        and type(cache) is PagedCache
        and batch.pages is not None
        and _fits_pages(x, batch, batch.pages, handle, cache)
    ):
        return Path("paged", window=cache.window)
    return HALVES


def _starts_at(positions: Positions, start: int, length: int) -> bool:
    """Return True if all rows have the positions `start` to `start + length`, as one slice."""
    return isinstance(positions, slice) and positions == slice(start, start + length)


def _fits_pages(
    x: mx.array, batch: Batch, table: PageTable, handle: LayerHandle, cache: PagedCache
) -> bool:
    """Return True if the extension can write to the pages of `cache`, and `table` fits them."""
    attention = handle.layer.attention
    pages = (table.num_pages, attention.num_kv_heads, table.page_size, attention.head_dim)
    return (
        table.count == batch.rows * batch.length
        and isinstance(batch.positions, mx.array)
        and batch.positions.size == table.count
        and len(table.seq_lens) > 0
        and all(
            tuple(stored.shape) == pages and is_written_natively(stored, x.dtype)
            for stored in (cache.keys, cache.values)
        )
    )
