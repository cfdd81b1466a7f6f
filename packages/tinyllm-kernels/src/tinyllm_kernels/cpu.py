"""The OpSet of native CPU kernels.

What a forward pass spends its time on is native: projections, experts, norms, rotary positions,
attention, the gate of the MLP, rows of the embedding, the choice of a token, and whole halves of a
block (`CpuOpSet`). The rest of the contract (softmax and silu alone, quantize) is MLX's own.
"""

from __future__ import annotations

import functools
from types import ModuleType

import mlx.core as mx
from jaxtyping import Float, Integer
from tinyllm_ops import MLX, OpSet, Positions, QuantizedTensor, Weight, Yarn
from tinyllm_ops.contract import (
    check_embedding,
    check_expert_linear,
    check_linear,
    check_rms_norm,
    check_rope,
    check_swiglu,
)
from tinyllm_ops.embedding import embedding_dtype

from tinyllm_kernels.arguments import array, frequencies, magnitude, weight
from tinyllm_kernels.arguments import positions as written_out
from tinyllm_kernels.cpu_attention import attention_of, paged_attention_of
from tinyllm_kernels.cpu_choice import argmax_of, log_probability_of, top_k_of
from tinyllm_kernels.cpu_opset import CpuOpSet


@functools.cache
def opset_of(native: ModuleType) -> OpSet:
    """The OpSet whose kernels are those of the extension `native`; the same one each time."""

    def linear(
        x: Float[mx.array, "*batch I"],
        w: Weight,
        bias: Float[mx.array, "O"] | None = None,
        *,
        phase: str | None = None,
    ) -> Float[mx.array, "*batch O"]:
        """x w^T + bias; a quantized w stays packed, and sums are float32."""
        check_linear(x, w, bias)
        if x.size == 0:
            return MLX.linear(x, w, bias)
        return array(native.linear(x, weight(w), bias, None, phase))

    def expert_linear(
        x: Float[mx.array, "*batch I"],
        w: Weight,
        experts: Integer[mx.array, "*batch"],
        *,
        phase: str | None = None,
    ) -> Float[mx.array, "*batch O"]:
        """Each row times its expert's matrix, run by run of equal experts."""
        check_expert_linear(x, w, experts)
        if x.size == 0:
            return MLX.expert_linear(x, w, experts)
        return array(native.expert_linear(x, weight(w), experts.astype(mx.int32), phase))

    def embedding(ids: Integer[mx.array, "*batch"], w: Weight) -> Float[mx.array, "*batch E"]:
        """w[ids]; only the rows asked for are read back."""
        check_embedding(ids, w)
        if ids.size == 0:
            return MLX.embedding(ids, w)
        dtype = embedding_dtype(w) if isinstance(w, QuantizedTensor) else w.dtype
        return array(native.embedding(ids.astype(mx.int32), weight(w), dtype))

    def swiglu(
        gate: Float[mx.array, "*shape"], up: Float[mx.array, "*shape"]
    ) -> Float[mx.array, "*shape"]:
        """silu(gate) * up in one pass."""
        check_swiglu(gate, up)
        return array(native.swiglu(gate, up))

    def rms_norm(
        x: Float[mx.array, "*batch D"], weight: Float[mx.array, "D"], eps: float = 1e-5
    ) -> Float[mx.array, "*batch D"]:
        """Each row in two passes, the second one from the cache."""
        check_rms_norm(x, weight, eps)
        return array(native.rms_norm(x, weight, eps))

    def rope(
        x: Float[mx.array, "B L H D"],
        positions: Positions = slice(None),
        base: float = 10000.0,
        traditional: bool = False,
        scaling: Yarn | None = None,
    ) -> Float[mx.array, "B L H D"]:
        """The angles of a token are computed once for all its heads."""
        check_rope(x, base)
        batch, length, _, dim = x.shape
        where = written_out(positions, batch, length)
        turns = frequencies(dim, base, scaling)
        return array(native.rope(x, where, turns, traditional, magnitude(scaling)))

    return CpuOpSet(
        name="cpu",
        native=native,
        linear=linear,
        expert_linear=expert_linear,
        swiglu=swiglu,
        rms_norm=rms_norm,
        rope=rope,
        attention=attention_of(native),
        paged_attention=paged_attention_of(native),
        embedding=embedding,
        softmax=MLX.softmax,
        silu=MLX.silu,
        quantize=MLX.quantize,
        argmax=argmax_of(native),
        top_k=top_k_of(native),
        log_probability=log_probability_of(native),
    )
