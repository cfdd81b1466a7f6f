"""Matrix products with weights, and the lookup of rows of an embedding."""

import mlx.core as mx
from jaxtyping import Float, Integer
from tinyllm_ops import MLX, Phase, Weight
from tinyllm_ops.checks import check_embedding, check_expert_linear, check_linear
from tinyllm_ops.reference.rowwise import embedding_dtype

from tinyllm_kernels import _cpu as native
from tinyllm_kernels.cpu.arguments import native_weight, weight_arrays


def linear(
    x: Float[mx.array, "*batch I"],
    w: Weight,
    bias: Float[mx.array, "O"] | None = None,
    residual: Float[mx.array, "*batch O"] | None = None,
    *,
    phase: Phase | None = None,
) -> Float[mx.array, "*batch O"]:
    """x w^T + bias + residual. A quantized w stays packed, and sums are float32."""
    return _linear(x, w, bias, residual, phase, int8_activations=False)


def expert_linear(
    x: Float[mx.array, "*batch I"],
    w: Weight,
    experts: Integer[mx.array, "*batch"],
    *,
    phase: Phase | None = None,
) -> Float[mx.array, "*batch O"]:
    """Multiply each row by the matrix of its expert, one product for each expert."""
    return _expert_linear(x, w, experts, phase, int8_activations=False)


def int8_linear(
    x: Float[mx.array, "*batch I"],
    w: Weight,
    bias: Float[mx.array, "O"] | None = None,
    residual: Float[mx.array, "*batch O"] | None = None,
    *,
    phase: Phase | None = None,
) -> Float[mx.array, "*batch O"]:
    """Compute `linear` with x of 16 bits rounded to 8, if w is affine in 4 or 8 bits, or mxfp4.

    Each group of x that shares a scale of w is rounded to 255 steps of its largest number. x in
    float32, such as that of a router, is not rounded.
    """
    return _linear(x, w, bias, residual, phase, int8_activations=x.dtype != mx.float32)


def int8_expert_linear(
    x: Float[mx.array, "*batch I"],
    w: Weight,
    experts: Integer[mx.array, "*batch"],
    *,
    phase: Phase | None = None,
) -> Float[mx.array, "*batch O"]:
    """Compute `expert_linear` with x rounded as by `int8_linear`."""
    return _expert_linear(x, w, experts, phase, int8_activations=x.dtype != mx.float32)


def embedding(ids: Integer[mx.array, "*batch"], w: Weight) -> Float[mx.array, "*batch E"]:
    """w[ids]. Only the requested rows are dequantized."""
    check_embedding(ids, w)
    if ids.size == 0:
        return MLX.embedding(ids, w)
    arrays = weight_arrays(w)  # `w.scales` would undo the interleaving for every token
    dtype = arrays[0].dtype if isinstance(w, mx.array) else embedding_dtype(arrays[1])
    return native.embedding(ids.astype(mx.int32), native_weight(w), dtype)


def _linear(
    x: mx.array,
    w: Weight,
    bias: mx.array | None,
    residual: mx.array | None,
    phase: Phase | None,
    *,
    int8_activations: bool,
) -> mx.array:
    check_linear(x, w, bias, residual)
    if x.size == 0:
        return MLX.linear(x, w, bias, residual)
    return native.linear(
        x, native_weight(w, int8_activations=int8_activations), bias, residual, phase
    )


def _expert_linear(
    x: mx.array, w: Weight, experts: mx.array, phase: Phase | None, *, int8_activations: bool
) -> mx.array:
    check_expert_linear(x, w, experts)
    if x.size == 0:
        return MLX.expert_linear(x, w, experts)
    weight = native_weight(w, int8_activations=int8_activations)
    return native.expert_linear(x, weight, experts.astype(mx.int32), phase)
