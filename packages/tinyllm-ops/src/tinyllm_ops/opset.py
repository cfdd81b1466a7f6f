"""The contract: everything that a Qwen model computes, as one value."""

from __future__ import annotations

import math
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

import mlx.core as mx
from jaxtyping import Float, Float32, Integer

from tinyllm_ops.attention_block import AttentionBlock
from tinyllm_ops.block import Block
from tinyllm_ops.contract import Weight, check_paged_attention_block
from tinyllm_ops.mlp_block import MlpBlock
from tinyllm_ops.moe_block import MoeBlock
from tinyllm_ops.norm import Norm
from tinyllm_ops.page_slots import write_slots
from tinyllm_ops.paged_tokens import PagedTokens
from tinyllm_ops.positions import Positions
from tinyllm_ops.projection import Projection
from tinyllm_ops.protocols import (
    Argmax,
    Attention,
    Embedding,
    ExpertLinear,
    Linear,
    LogProbability,
    PagedAttention,
    Quantize,
    RmsNorm,
    Rope,
    Silu,
    Softmax,
    Swiglu,
    TopK,
)
from tinyllm_ops.quantized_tensor import QuantizedTensor


@dataclass(frozen=True)
class OpSet:
    """One implementation of each op; layers take an OpSet and know of no backend.

    Two OpSets give the same numbers up to the rounding of the dtype, and refuse the same
    arguments with the same words (`tinyllm_ops.contract`).

    The fields are the fine ops. The methods are the coarse ones, the halves of a transformer block
    and blocks one after the other: here they are compositions of the fields, to be read; a backend
    for which many small steps are too slow may compute each as a whole.
    """

    name: str
    linear: Linear
    expert_linear: ExpertLinear
    embedding: Embedding
    softmax: Softmax
    silu: Silu
    swiglu: Swiglu
    rms_norm: RmsNorm
    rope: Rope
    attention: Attention
    paged_attention: PagedAttention
    quantize: Quantize
    argmax: Argmax
    top_k: TopK
    log_probability: LogProbability

    def prepare(self, weights: MutableMapping[str, Weight]) -> None:
        """Get ready for weights that a model will be computed with, before it is made of them.

        There is nothing to do here; a backend may care how they lie in memory, and put others in
        their place. Those have the same numbers, and are read like them by every OpSet.

        Args:
            weights: each is replaced before the next is looked at. One that nobody else holds may
                be changed where it lies.
        """

    def feed_forward(
        self, x: Float[mx.array, "*batch E"], half: MlpBlock | MoeBlock
    ) -> Float[mx.array, "*batch E"]:
        """The half of a block behind attention, of either kind."""
        return self.moe_block(x, half) if isinstance(half, MoeBlock) else self.mlp_block(x, half)

    def mlp_block(
        self, x: Float[mx.array, "*batch E"], block: MlpBlock
    ) -> Float[mx.array, "*batch E"]:
        """x + down(silu(gate n) * (up n)), n = norm(x); without x where `residual` is off."""
        normal = self._normalized(x, block.norm)
        gated = self.swiglu(self.linear(normal, block.gate), self.linear(normal, block.up))
        y = self.linear(gated, block.down)
        return x + y if block.residual else y

    def moe_block(
        self, x: Float[mx.array, "*batch E"], block: MoeBlock
    ) -> Float[mx.array, "*batch E"]:
        """x + sum of p_k mlp_k(n) over the chosen experts; without x where `residual` is off.

        The axes say what the rows are, as in `linear`: those of `... 1 E` belong to texts of their
        own.
        """
        normal = x if block.norm is None else self._normalized(x, block.norm)
        shares, experts = self.route(normal, block)
        chosen = experts.flatten()
        order = mx.argsort(chosen)  # rows of one expert side by side: its matrices are read once
        tokens = normal.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        rows = tokens[order // block.num_experts_per_tok]
        decoded = x.shape[-2:-1] == (1,)
        said = self.expert_mlp(rows, chosen[order], block, decoded=decoded)[mx.argsort(order)]
        said = said.reshape(*experts.shape, x.shape[-1]).astype(mx.float32)
        y = (said * shares[..., None]).sum(-2).astype(x.dtype)  # *batch K E to *batch E
        return x + y if block.residual else y

    def route(
        self, x: Float[mx.array, "*batch E"], block: MoeBlock
    ) -> tuple[Float32[mx.array, "*batch K"], Integer[mx.array, "*batch K"]]:
        """Choose K experts a token: their shares, float32 and largest first, and their numbers."""
        w = block.router
        wide = w if isinstance(w, QuantizedTensor) else w.astype(mx.float32)
        shares = self.softmax(self.linear(x.astype(mx.float32), wide))  # *batch X
        experts = mx.argsort(-shares, axis=-1)[..., : block.num_experts_per_tok]
        shares = mx.take_along_axis(shares, experts, axis=-1)
        if block.norm_topk_prob:
            shares = shares / shares.sum(-1, keepdims=True)
        return shares, experts

    def expert_mlp(
        self,
        x: Float[mx.array, "R E"],
        experts: Integer[mx.array, "R"],
        block: MoeBlock,
        *,
        decoded: bool,
    ) -> Float[mx.array, "R E"]:
        """An MLP with the matrices of each row's own expert.

        Args:
            x: rows, those of one expert side by side.
            experts: which of the experts held each goes to, in ascending order.
            block: the experts.
            decoded: whether each row belongs to a text of its own.
        """
        lead = (experts.size, 1) if decoded else (1, experts.size)
        rows, where = x.reshape(*lead, x.shape[-1]), experts.reshape(lead)
        gate, up = (self.expert_linear(rows, w, where) for w in (block.gate, block.up))
        return self.expert_linear(self.swiglu(gate, up), block.down, where).reshape(x.shape)

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
        """The attention half over dense keys and values: norm, q k v, RoPE, attention, residual.

        Args:
            x: L new tokens of each row.
            block: weights and settings.
            keys: those of the `offset` tokens before, with room for L more. They are written in
                place if nobody else holds the array when the graph is computed.
            values: like keys.
            offset: tokens seen before: the position of the first new one.

        Returns:
            What leaves the block, keys and values with the new tokens.
        """
        end = offset + x.shape[1]
        q, k, v = self.attention_inputs(x, block, slice(offset, end))
        keys[..., offset:end, :] = k
        values[..., offset:end, :] = v
        # A single query is the last token and sees everything: it needs no mask.
        mask = "causal" if x.shape[1] > 1 else None
        heads = self.attention(q, keys[..., :end, :], values[..., :end, :], block.scale, mask)
        return self.attention_output(x, heads, block), keys, values

    def paged_attention_block(
        self,
        x: Float[mx.array, "B L E"],
        block: AttentionBlock,
        keys: Weight,
        values: Weight,
        pages: PagedTokens,
    ) -> tuple[Float[mx.array, "B L E"], Weight, Weight]:
        """The attention half over keys and values in pages, for the tokens of many requests.

        Args:
            x: T tokens. `T 1 E` are tokens that are decoded, each a row of its own; `1 T E` are
                chunks of prompts, one after the other.
            block: weights and settings.
            keys: `P Hkv page D`, dense or quantized; new ones are quantized as the others are, and
                seen so. They are written in place if nobody else holds the arrays when the graph
                is computed.
            values: like keys.
            pages: whose tokens these are, and where they belong.

        Returns:
            What leaves the block, keys and values with the new tokens.

        Raises:
            ValueError: if shapes do not fit.
        """
        kv_heads, dim = block.num_kv_heads, block.head_dim
        check_paged_attention_block(x, pages.count, kv_heads, dim, keys, values)
        lead = x.shape[:2]
        made = self.attention_inputs(x, block, pages.positions.reshape(lead))
        q, k, v = (part.swapaxes(1, 2).flatten(0, 1) for part in made)  # T heads D
        keys = write_slots(keys, self._like(k, keys), pages.slots)
        values = write_slots(values, self._like(v, values), pages.slots)
        where = (pages.block_table, pages.query_starts, pages.context_lengths)
        out = self.paged_attention(q, keys, values, *where, block.scale, pages.window)
        heads = mx.unflatten(out, 0, lead).swapaxes(1, 2)  # B H L D
        return self.attention_output(x, heads, block), keys, values

    def blocks(
        self,
        x: Float[mx.array, "B L E"],
        blocks: Sequence[Block],
        stores: Sequence[tuple[mx.array, mx.array]],
        offset: int,
    ) -> tuple[Float[mx.array, "B L E"], list[tuple[mx.array, mx.array]]]:
        """Blocks one after the other over dense keys and values.

        Args:
            x: L new tokens of each row.
            blocks: the first one takes x, each other one what leaves the one before.
            stores: keys and values of each, as `attention_block` has them.
            offset: tokens seen before, in all of them.

        Returns:
            What leaves the last one, keys and values of each with the new tokens.
        """
        written = []
        for block, store in zip(blocks, stores, strict=True):
            x, keys, values = self.attention_block(x, block.attention, *store, offset)
            x = self.feed_forward(x, block.mlp)
            written.append((keys, values))
        return x, written

    def paged_blocks(
        self,
        x: Float[mx.array, "B L E"],
        blocks: Sequence[Block],
        stores: Sequence[tuple[Weight, Weight]],
        pages: PagedTokens,
    ) -> tuple[Float[mx.array, "B L E"], list[tuple[Weight, Weight]]]:
        """Blocks one after the other over keys and values in pages.

        Args:
            x: T tokens, as in `paged_attention_block`.
            blocks: the first one takes x, each other one what leaves the one before.
            stores: keys and values of each, as `paged_attention_block` has them.
            pages: whose tokens these are, and where they belong in all of them.

        Returns:
            What leaves the last one, keys and values of each with the new tokens.

        Raises:
            ValueError: if shapes do not fit.
        """
        written = []
        for block, store in zip(blocks, stores, strict=True):
            x, keys, values = self.paged_attention_block(x, block.attention, *store, pages)
            x = self.feed_forward(x, block.mlp)
            written.append((keys, values))
        return x, written

    def attention_inputs(
        self, x: Float[mx.array, "B L E"], block: AttentionBlock, positions: Positions
    ) -> tuple[
        Float[mx.array, "B H L D"], Float[mx.array, "B Hkv L D"], Float[mx.array, "B Hkv L D"]
    ]:
        """What attention is asked and given: queries, keys and values of the new tokens."""
        x = x if block.norm is None else self._normalized(x, block.norm)

        def heads(projection: Projection, norm: Norm | None) -> mx.array:
            split = mx.unflatten(
                self.linear(x, projection.weight, projection.bias), -1, (-1, block.head_dim)
            )
            return split if norm is None else self._normalized(split, norm)  # B L heads D

        rotary = block.rotary
        q, k = (
            self.rope(each, positions, rotary.base, rotary.traditional, rotary.scaling)
            for each in (heads(block.q, block.q_norm), heads(block.k, block.k_norm))
        )
        v = heads(block.v, None)
        return q.swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2)

    def attention_output(
        self, x: Float[mx.array, "B L E"], heads: Float[mx.array, "B H L D"], block: AttentionBlock
    ) -> Float[mx.array, "B L E"]:
        """x + o(heads side by side); without x where `residual` is off."""
        joined = heads.swapaxes(1, 2).flatten(2)  # B L H*D
        y = self.linear(joined, block.o.weight, block.o.bias)
        return x + y if block.residual else y

    def _like(self, rows: mx.array, stored: Weight) -> Weight:
        """Rows in the format of a cache."""
        if isinstance(stored, mx.array):
            return rows
        return self.quantize(rows, stored.group_size, stored.bits, stored.mode)

    def _normalized(self, x: mx.array, norm: Norm) -> mx.array:
        """RMSNorm with the weight and eps of a block."""
        return self.rms_norm(x, norm.weight, norm.eps)
