"""Transformer blocks, and their halves, each as one primitive.

A primitive of MLX costs some microseconds on its way to the stream's thread, and the threads of a
machine have to be brought together for each product: a token of small steps is slow for what lies
between them.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TypeVar
from weakref import WeakKeyDictionary

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import (
    AttentionBlock,
    Block,
    MlpBlock,
    MoeBlock,
    OpSet,
    PagedTokens,
    Positions,
    QuantizedTensor,
    Weight,
)
from tinyllm_ops.contract import (
    check_expert_linear,
    check_linear,
    check_paged_attention_block,
    check_rms_norm,
)
from tinyllm_ops.quantized_tensor import AFFINE

from tinyllm_kernels import arguments
from tinyllm_kernels.interleaved_tensor import InterleavedTensor

_Store = TypeVar("_Store")

_BLOCKS_AT_ONCE = 14
"""Of a primitive MLX looks at all keys and values before the first block begins, and the threads
wait: measured on 28 blocks, two primitives are faster than one, and than four."""


@dataclass(frozen=True)
class CpuOpSet(OpSet):
    """An OpSet whose coarse ops are native as well.

    What becomes of a row is the same, to the last bit, whatever rows are beside it: those of
    `R 1 E` are tokens that are decoded, those of `1 T E` with T > 1 a prompt, and only this decides
    how they are computed. (Of a matrix up to 16 rows count as decoded.)

    Attributes:
        native: the extension.
    """

    native: ModuleType
    # What the extension was told of a block, for as long as somebody holds the block.
    _told: WeakKeyDictionary[AttentionBlock | MlpBlock | MoeBlock, object] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False, compare=False
    )

    def prepare(self, weights: MutableMapping[str, Weight]) -> None:
        """Let rows lie side by side where products want that, and move all into large pages.

        Rows change places in the memory where they are, if nobody but `weights` holds it. The
        pages come last: one is made of what lies in its 2 MB, which are often two weights.
        """
        for name in list(weights):
            weights[name] = self._interleaved(weights.pop(name))
            mx.eval(*arguments.parts(weights[name]))
        for weight in weights.values():
            for part in arguments.parts(weight):
                self.native.use_huge_pages(part)

    def mlp_block(
        self, x: Float[mx.array, "*batch E"], block: MlpBlock
    ) -> Float[mx.array, "*batch E"]:
        """Two passes over the weights: gate with up and their product, then down."""
        check_rms_norm(x, block.norm.weight, block.norm.eps)
        if x.size == 0:
            return super().mlp_block(x, block)
        return arguments.array(self.native.feed_forward(x, self._second(x, block)))

    def moe_block(
        self, x: Float[mx.array, "*batch E"], block: MoeBlock
    ) -> Float[mx.array, "*batch E"]:
        """One task for gates and ups of all chosen experts, one for all downs."""
        if block.norm is not None:
            check_rms_norm(x, block.norm.weight, block.norm.eps)
        else:
            rows = x if x.ndim > 1 else x[None]
            check_expert_linear(rows, block.gate, mx.zeros(rows.shape[:-1], mx.int32))
        if x.size == 0:
            return super().moe_block(x, block)
        return arguments.array(self.native.feed_forward(x, self._second(x, block)))

    def attention_block(
        self,
        x: Float[mx.array, "B L E"],
        block: AttentionBlock,
        keys: Float[mx.array, "B Hkv capacity D"],
        values: Float[mx.array, "B Hkv capacity D"],
        offset: int,
    ) -> tuple[
        Float[mx.array, "B L E"],
        Float[mx.array, "B Hkv capacity D"],
        Float[mx.array, "B Hkv capacity D"],
    ]:
        """From norm to residual; the new keys and values are written where they are read."""
        _check(x, block)
        if x.size == 0:
            return super().attention_block(x, block, keys, values, offset)
        told = [self._attention(x, block)]
        made = self.native.blocks(x, told, [], [keys, values], offset)
        y, keys, values = arguments.arrays(made)
        return y, keys, values

    def blocks(
        self,
        x: Float[mx.array, "B L E"],
        blocks: Sequence[Block],
        stores: Sequence[tuple[mx.array, mx.array]],
        offset: int,
    ) -> tuple[Float[mx.array, "B L E"], list[tuple[mx.array, mx.array]]]:
        """Many in a primitive: only the threads that compute have to be brought together."""
        if x.size == 0:
            return super().blocks(x, blocks, stores, offset)
        written: list[tuple[mx.array, mx.array]] = []
        for some, theirs in _together(blocks, stores):
            _check(x, some[0].attention)
            flat = [part for store in theirs for part in store]
            made = self.native.blocks(x, *self._blocks(x, some), flat, offset)
            x, *parts = arguments.arrays(made)
            written += zip(parts[::2], parts[1::2], strict=True)
        return x, written

    def paged_attention_block(
        self,
        x: Float[mx.array, "B L E"],
        block: AttentionBlock,
        keys: Weight,
        values: Weight,
        pages: PagedTokens,
    ) -> tuple[Float[mx.array, "B L E"], Weight, Weight]:
        """From norm to residual for the tokens of all requests; nothing comes back to the host.

        Pages are dense, or affine in 4 or 8 bits; those in other formats take several steps.
        """
        _check_pages(x, block, keys, values, pages)
        if not _takes_pages(x, pages, [(keys, values)]):
            return super().paged_attention_block(x, block, keys, values, pages)
        told = [self._attention(x, block)]
        y, [(keys, values)] = self._paged(x, (told, []), [(keys, values)], pages)
        return y, keys, values

    def paged_blocks(
        self,
        x: Float[mx.array, "B L E"],
        blocks: Sequence[Block],
        stores: Sequence[tuple[Weight, Weight]],
        pages: PagedTokens,
    ) -> tuple[Float[mx.array, "B L E"], list[tuple[Weight, Weight]]]:
        """As `blocks`, for pages as `paged_attention_block` takes them."""
        if not _takes_pages(x, pages, stores):
            return super().paged_blocks(x, blocks, stores, pages)
        written: list[tuple[Weight, Weight]] = []
        for some, theirs in _together(blocks, stores):
            for block, store in zip(some, theirs, strict=True):
                _check_pages(x, block.attention, *store, pages)
            x, stored = self._paged(x, self._blocks(x, some), theirs, pages)
            written += stored
        return x, written

    def attention_inputs(
        self, x: Float[mx.array, "B L E"], block: AttentionBlock, positions: Positions
    ) -> tuple[
        Float[mx.array, "B H L D"], Float[mx.array, "B Hkv L D"], Float[mx.array, "B Hkv L D"]
    ]:
        """Queries, keys and values in one pass over the weights."""
        _check(x, block)
        if x.size == 0:
            return super().attention_inputs(x, block, positions)
        where = arguments.positions(positions, *x.shape[:2])
        q, k, v = arguments.arrays(
            self.native.attention_inputs(x, self._attention(x, block), where)
        )
        return q, k, v

    def attention_output(
        self, x: Float[mx.array, "B L E"], heads: Float[mx.array, "B H L D"], block: AttentionBlock
    ) -> Float[mx.array, "B L E"]:
        """The residual is added where the product is."""
        if x.size == 0:
            return super().attention_output(x, heads, block)
        joined = heads.swapaxes(1, 2).flatten(2)  # B L H*D
        weight = arguments.weight(block.o.weight)
        added = x if block.residual else None
        return arguments.array(self.native.linear(joined, weight, block.o.bias, added))

    def _interleaved(self, weight: Weight) -> Weight:
        """The weight as products of this machine want it."""
        if not isinstance(weight, QuantizedTensor) or isinstance(weight, InterleavedTensor):
            return weight
        rows = self.native.interleaves(arguments.weight(weight))
        if not rows:
            return weight
        form = (weight.group_size, weight.bits, weight.mode)
        parts = list(weight.arrays)
        del weight  # or it would be somebody else who holds the parts
        made = [arguments.array(self.native.interleave(parts.pop(0), rows)) for _ in range(3)]
        return InterleavedTensor(made, rows, *form)

    def _paged(
        self,
        x: mx.array,
        told: tuple[list[object], list[object]],
        stores: Sequence[tuple[Weight, Weight]],
        pages: PagedTokens,
    ) -> tuple[mx.array, list[tuple[Weight, Weight]]]:
        """What leaves blocks that the extension was told of, and their pages."""
        flat = [each for store in stores for each in store]
        where = arguments.paged_tokens(pages)
        made = self.native.paged_blocks(
            x, *told, [arguments.weight(each) for each in flat], where, pages.window or 0
        )
        y, *parts = arguments.arrays(made)
        rest = iter(parts)
        written = [
            arguments.like(each, [next(rest) for _ in arguments.parts(each)]) for each in flat
        ]
        return y, list(zip(written[::2], written[1::2], strict=True))

    def _blocks(self, x: mx.array, blocks: Sequence[Block]) -> tuple[list[object], list[object]]:
        """What the extension was told of the halves of blocks."""
        attention = [self._attention(x, block.attention) for block in blocks]
        return attention, [self._second(x, block.mlp) for block in blocks]

    def _second(self, x: mx.array, block: MlpBlock | MoeBlock) -> object:
        """What the extension was told of the block when it first met an input like x."""
        told = self._told.get(block)
        if told is not None:
            return told
        if isinstance(block, MoeBlock):
            told = arguments.moe_weights(self.native, block)
        else:
            check_linear(x, block.gate, None)
            told = arguments.mlp_weights(self.native, block)
        self._told[block] = told
        return told

    def _attention(self, x: mx.array, block: AttentionBlock) -> object:
        """What the extension was told of the block when it first met an input like x."""
        told = self._told.get(block)
        if told is None:
            check_linear(x, block.q.weight, block.q.bias)
            told = self._told[block] = arguments.attention_weights(self.native, block)
        return told


def _together(
    blocks: Sequence[Block], stores: Sequence[_Store]
) -> Iterator[tuple[Sequence[Block], Sequence[_Store]]]:
    """As many blocks at a time, with their keys and values, as a primitive takes."""
    for first in range(0, len(blocks), _BLOCKS_AT_ONCE):
        part = slice(first, first + _BLOCKS_AT_ONCE)
        yield blocks[part], stores[part]


def _takes_pages(x: mx.array, pages: PagedTokens, stores: Sequence[tuple[Weight, Weight]]) -> bool:
    """Whether the extension writes to pages like these, and there is something to write."""
    written = all(_is_written(each, x.dtype) for store in stores for each in store)
    return x.size > 0 and pages.block_table.size > 0 and written


def _is_written(stored: Weight, dtype: mx.Dtype) -> bool:
    """Whether the extension writes rows of the dtype in the format of a cache."""
    if isinstance(stored, mx.array):
        return True
    affine = stored.mode == AFFINE and stored.bits in (4, 8)
    return affine and stored.scales.dtype == dtype


def _check(x: mx.array, block: AttentionBlock) -> None:
    """The input fits the first weight that it meets; the layers have seen to the rest."""
    if block.norm is None:
        check_linear(x, block.q.weight, block.q.bias)
    else:
        check_rms_norm(x, block.norm.weight, block.norm.eps)


def _check_pages(
    x: mx.array, block: AttentionBlock, keys: Weight, values: Weight, pages: PagedTokens
) -> None:
    """The input and the pages fit the block."""
    kv_heads, dim = block.num_kv_heads, block.head_dim
    check_paged_attention_block(x, pages.count, kv_heads, dim, keys, values)
    _check(x, block)
