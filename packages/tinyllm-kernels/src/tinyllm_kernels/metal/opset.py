"""The OpSet of Metal kernels.

MLX computes what has no kernel here: dense and floating-point weights, silu alone, quantize, the
choice of a token.
"""

from __future__ import annotations

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import MLX, AttentionBlock, MlpBlock, OpSet, Positions, Projection

from tinyllm_kernels.metal.attention import attention
from tinyllm_kernels.metal.embedding import embedding
from tinyllm_kernels.metal.expert_linear import expert_linear
from tinyllm_kernels.metal.linear import add_linear, linear
from tinyllm_kernels.metal.paged_attention import paged_attention
from tinyllm_kernels.metal.rms_norm import rms_norm
from tinyllm_kernels.metal.rope import head_inputs, rope
from tinyllm_kernels.metal.softmax import softmax
from tinyllm_kernels.metal.swiglu import swiglu


class MetalOpSet(OpSet):
    """An OpSet that does more than one op in a kernel where fewer bytes are moved that way.

    Queries and keys come to attention in one pass after their product, and a residual is added by
    the product before it.
    """

    def attention_inputs(
        self, x: Float[mx.array, "B L E"], block: AttentionBlock, positions: Positions
    ) -> tuple[
        Float[mx.array, "B H L D"], Float[mx.array, "B Hkv L D"], Float[mx.array, "B Hkv L D"]
    ]:
        """The norm of each head, its rotation and the order of its axes are one kernel."""
        if block.norm is not None:
            x = self.rms_norm(x, block.norm.weight, block.norm.eps)

        def heads(projection: Projection) -> mx.array:
            y = self.linear(x, projection.weight, projection.bias)
            return mx.unflatten(y, -1, (-1, block.head_dim))  # B L heads D

        q = head_inputs(heads(block.q), positions, block.rotary, block.q_norm)
        k = head_inputs(heads(block.k), positions, block.rotary, block.k_norm)
        return q, k, heads(block.v).swapaxes(1, 2)

    def attention_output(
        self, x: Float[mx.array, "B L E"], heads: Float[mx.array, "B H L D"], block: AttentionBlock
    ) -> Float[mx.array, "B L E"]:
        """The residual is added where the product is rounded."""
        joined = heads.swapaxes(1, 2).flatten(2)  # B L H*D
        if not block.residual:
            return self.linear(joined, block.o.weight, block.o.bias)
        return add_linear(x, joined, block.o.weight, block.o.bias)

    def mlp_block(
        self, x: Float[mx.array, "*batch E"], block: MlpBlock
    ) -> Float[mx.array, "*batch E"]:
        """The residual is added where the product is rounded."""
        normal = self.rms_norm(x, block.norm.weight, block.norm.eps)
        gated = self.swiglu(self.linear(normal, block.gate), self.linear(normal, block.up))
        return (
            add_linear(x, gated, block.down) if block.residual else self.linear(gated, block.down)
        )


METAL = MetalOpSet(
    name="metal",
    linear=linear,
    expert_linear=expert_linear,
    embedding=embedding,
    softmax=softmax,
    silu=MLX.silu,
    swiglu=swiglu,
    rms_norm=rms_norm,
    rope=rope,
    attention=attention,
    paged_attention=paged_attention,
    quantize=MLX.quantize,
    argmax=MLX.argmax,
    top_k=MLX.top_k,
    log_probability=MLX.log_probability,
)
