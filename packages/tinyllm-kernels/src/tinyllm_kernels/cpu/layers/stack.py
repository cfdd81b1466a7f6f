"""The native stack, which computes several decoder layers in one primitive of MLX.

MLX needs some microseconds to pass a primitive to the thread of its stream, and each product on
several threads ends in a barrier. For a single token, the ops of a layer are so small that these
costs exceed the time of the ops.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, cast

import mlx.core as mx
from jaxtyping import Float
from tinyllm_layers import (
    Batch,
    DecoderLayer,
    LayerCache,
    PagedCache,
    RecurrentCache,
    RecurrentPool,
)
from tinyllm_layers.cache.dense import GrowingCache
from tinyllm_layers.decoder import check_caches
from tinyllm_ops import Fusion, Phase
from tinyllm_ops.checks import require_shape

from tinyllm_kernels import _cpu as native
from tinyllm_kernels.cpu.layers.cache_formats import DENSE, page_format, sequence_format
from tinyllm_kernels.cpu.layers.handles import NATIVE_OPS, InputSpec, layer_handle
from tinyllm_kernels.cpu.layers.layer_groups import (
    LayerGroup,
    first_position,
    has_page_table,
    make_groups,
    run_halves,
    run_paged,
    run_sequences,
)
from tinyllm_kernels.cpu.layers.loans import StackLoan, lend_pages, lend_sequences
from tinyllm_kernels.cpu.opset import CPU_INT8_OPS, CPU_OPS


@dataclass(frozen=True)
class LayerPath:
    """A choice of the implementation that computes a layer in one pass.

    Consecutive layers with equal paths form a segment.

    Attributes:
        kind: "sequences" and "paged" compute whole layers in the extension, several in one
            primitive. "halves" computes projections and MLP or MoE natively, and calls the cache
            for attention. "layer" calls the layer itself. "states" is a recurrent layer that has
            not joined the segment of an attention layer yet.
        offset: for "sequences", the number of tokens in each cache of the segment.
        window: for "paged", the window of each cache of the segment.
        cache_format: for "sequences" and "paged", the format of keys and values: see
            `cache_formats.sequence_format` and `cache_formats.page_format`.
    """

    kind: Literal["sequences", "paged", "halves", "layer", "states"]
    offset: int = 0
    window: int | None = None
    cache_format: tuple[int, int] = DENSE


_LOGGER = logging.getLogger("tinyllm_kernels")

HALVES, LAYER, STATES = LayerPath("halves"), LayerPath("layer"), LayerPath("states")
STATES_ALONE = LayerPath("sequences")  # a segment without attention, which has no offset


class NativeStack:
    """The stack of decoder layers for CPUs, with the results of `LayerStack` over the same ops.

    For dense models the bits of both stacks are equal. For mixtures of experts and output gates the
    results agree within rounding. The constructor reads the weights of the layers once.

    Attributes:
        layers: the layers, in the order of computation.
    """

    def __init__(self, layers: Sequence[DecoderLayer]) -> None:
        """Make the handles of all layers, which evaluates their weights."""
        self.layers = tuple(layers)
        self._handles = [layer_handle(layer) for layer in self.layers]
        # Layers of one model have equal RoPE settings: keep one RoPE for each `seq_len` to check.
        attentions = [handle.attention for handle in self._handles if handle is not None]
        ropes = [each.rope for each in attentions if each is not None]
        self._ropes = list({rope.seq_len: rope for rope in ropes}.values())
        # Most models have one spec. Comparing dtypes of every handle would read 28 more objects.
        specs = [None if handle is None else handle.input_spec for handle in self._handles]
        self._specs = list(dict.fromkeys(specs))
        self._spec_of_layer = [self._specs.index(spec) for spec in specs]
        # By the first layer, the layer after the last one, and the phase.
        self._groups: dict[tuple[int, int, Phase], list[LayerGroup]] = {}
        self._copied_before, self._has_warned = native.copied_bytes(), False
        # All layers as one group, if it can be computed as a whole and each layer has attention.
        can_lend = (
            len(attentions) > 0
            and None not in attentions
            and all(spec is not None and spec.whole for spec in specs)
        )
        # "prefill", because its groups have no limit of layers. Loans use the group in decode.
        self._all_layers = self._groups_of(0, len(attentions), "prefill")[0] if can_lend else None

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
        self._warn_of_copies()
        group = self._all_layers
        if group is not None and caches[0].lent is not None:
            loan, _ = caches[0].lent
            if isinstance(loan, StackLoan) and loan.serves(x, batch, group, caches):
                return loan.run(x, batch, group)
        fastest = [fastest_path(x, spec) for spec in self._specs]
        paths = choose_paths(batch, x.dtype, [fastest[i] for i in self._spec_of_layer], caches)
        segments = [(path, len(list(layers))) for path, layers in groupby(paths)]
        if group is not None and len(segments) == 1:
            # A prompt takes so long that the objects of each layer cost nothing in comparison, and
            # its callers evaluate the arrays of growing caches after each chunk.
            if paths[0].kind == "sequences" and batch.phase == "decode":
                growing = cast("Sequence[GrowingCache]", caches)
                return lend_sequences(x, batch, group, growing, paths[0].cache_format)
            if paths[0].kind == "paged":
                pages = cast("Sequence[PagedCache]", caches)
                return lend_pages(x, batch, group, pages, paths[0].cache_format)
        first = 0
        for path, count in segments:
            x = self._run(x, batch, path, first, first + count, caches)
            first += count
        return x

    def _run(
        self,
        x: mx.array,
        batch: Batch,
        path: LayerPath,
        first: int,
        stop: int,
        caches: Sequence[LayerCache],
    ) -> mx.array:
        """Compute the layers `first` to `stop`, which all have the path `path`."""
        if path.kind == "sequences":
            for group in self._groups_of(first, stop, batch.phase):
                x = run_sequences(x, batch, group, caches, path.offset, path.cache_format)
        elif path.kind == "paged":
            for group in self._groups_of(first, stop, batch.phase):
                x = run_paged(x, batch, group, caches, path.window, path.cache_format)
        else:
            for index in range(first, stop):
                handle, cache = self._handles[index], caches[index]
                if path.kind == "halves" and handle is not None and handle.attention is not None:
                    x = run_halves(x, batch, handle, cache)
                else:
                    x = self.layers[index](x, batch, cache)
        return x

    def _warn_of_copies(self) -> None:
        """Log a warning, once, if a cache was copied since this stack was made.

        A stack writes keys and values in place. If another object refers to the arrays of a cache,
        MLX does not donate them, and the extension copies every page first.
        """
        copied = native.copied_bytes() - self._copied_before
        if copied and not self._has_warned:
            self._has_warned = True
            _LOGGER.warning(
                "caches: expected writes in place, got copies of %.1f MB, because another object "
                "refers to the arrays: drop that reference, or use `fork` only where it is needed",
                copied / 1e6,
            )

    def _groups_of(self, first: int, stop: int, phase: Phase) -> list[LayerGroup]:
        """Return the groups of the layers `first` to `stop`, made at the first call."""
        key = first, stop, phase
        groups = self._groups.get(key)
        if groups is None:
            groups = self._groups[key] = make_groups(self._handles, first, stop, phase)
        return groups


def fastest_path(
    x: Float[mx.array, "B L E"], spec: InputSpec | None
) -> Literal["layer", "halves", "whole"]:
    """Return the fastest path that accepts x, before the cache is known.

    "whole" stands for the paths "sequences", "paged" and "states", each for some kinds of cache,
    and for "halves" with any other cache.

    Args:
        x: the input of a stack.
        spec: the inputs that a layer accepts; None if the extension does not know the layer.
    """
    if spec is None or x.size == 0 or (x.dtype, x.shape[-1]) != (spec.dtype, spec.width):
        return "layer"
    return "whole" if spec.whole else "halves"


def choose_paths(
    batch: Batch,
    dtype: mx.Dtype,
    fastest: Sequence[Literal["layer", "halves", "whole"]],
    caches: Sequence[LayerCache],
) -> list[LayerPath]:
    """Choose for each layer the fastest path that gives the result of the layer itself.

    If x, batch and cache do not fit together, the ops of the chosen path raise the error. The paths
    "sequences" and "paged" need exactly `DenseCache`, `QuantizedCache` and `PagedCache`, because a
    subclass may override `attend`.

    Args:
        batch: the layout of the pass.
        dtype: the dtype of the input.
        fastest: the result of `fastest_path` for each layer.
        caches: one cache per layer.
    """
    has_pages, offset = has_page_table(batch), first_position(batch)
    sequences: dict[tuple[int, int], LayerPath] = {}
    paged: dict[tuple[int | None, tuple[int, int]], LayerPath] = {}
    paths = []
    for kind, cache in zip(fastest, caches, strict=True):
        if kind != "whole":
            paths.append(LAYER if kind == "layer" else HALVES)
        elif type(cache) in (RecurrentCache, RecurrentPool):
            paths.append(STATES)
        elif (
            offset is not None
            and (found := sequence_format(cache))
            and cast("GrowingCache", cache).offset == offset
        ):
            path_of_sequences = LayerPath("sequences", offset=offset, cache_format=found)
            paths.append(sequences.setdefault(found, path_of_sequences))
        elif has_pages and type(cache) is PagedCache and (found := page_format(cache, dtype)):
            path_of_pages = LayerPath("paged", window=cache.window, cache_format=found)
            paths.append(paged.setdefault((cache.window, found), path_of_pages))
        else:
            paths.append(HALVES)
    return _with_states(paths)


def _with_states(paths: Sequence[LayerPath]) -> list[LayerPath]:
    """Let recurrent layers join the segment of the attention layer after them.

    Recurrent layers need neither positions nor pages, so every path of whole layers is theirs too.
    """
    joined, after = [], STATES_ALONE
    for path in reversed(paths):
        if path.kind != "states":
            after = path if path.kind in ("sequences", "paged") else STATES_ALONE
        joined.append(after if path.kind == "states" else path)
    return joined[::-1]


CPU = replace(CPU_OPS, stack=Fusion(NativeStack, of=NATIVE_OPS))
"""The backend for CPUs: native ops with the native stack."""

CPU_INT8 = replace(CPU_INT8_OPS, stack=Fusion(NativeStack, of=NATIVE_OPS))
"""The backend `CPU` with products that round activations to 8 bits."""
