"""The backends for CPUs: native ops, a native stack of layers, and a layout of weights for both.

`softmax` and `quantize` are the functions of the OpSet `MLX`.
"""

from __future__ import annotations

import warnings
from collections.abc import MutableMapping
from dataclasses import replace

from tinyllm_layers import Backend
from tinyllm_ops import MLX, Fusion, Weight

from tinyllm_kernels import _cpu as native
from tinyllm_kernels.cpu.arguments import native_weight
from tinyllm_kernels.cpu.attention import attention, paged_attention
from tinyllm_kernels.cpu.handles import INT8_OPS, NATIVE_OPS
from tinyllm_kernels.cpu.prepare import prepare
from tinyllm_kernels.cpu.products import (
    embedding,
    expert_linear,
    int8_expert_linear,
    int8_linear,
    linear,
)
from tinyllm_kernels.cpu.recurrent import causal_conv, gated_delta, gated_rms_norm
from tinyllm_kernels.cpu.rowwise import rms_norm, rope, swiglu
from tinyllm_kernels.cpu.scores import argmax, log_probability, top_k
from tinyllm_kernels.cpu.stack import NativeStack


def prepare_int8(weights: MutableMapping[str, Weight]) -> None:
    """Prepare weights, and warn if no product with them rounds activations to 8 bits."""
    prepare(weights)
    converted = [native_weight(weight, int8_activations=True) for weight in weights.values()]
    if not any(native.uses_int8_activations(w) for w in converted):
        warnings.warn(
            "cpu-int8: expected affine weights with 16-bit scales, or mxfp4, got none: this model "
            "is computed as by cpu",
            stacklevel=2,
        )


CPU = Backend(
    name="cpu",
    linear=linear,
    expert_linear=expert_linear,
    embedding=embedding,
    softmax=MLX.softmax,
    swiglu=swiglu,
    rms_norm=rms_norm,
    rope=rope,
    attention=attention,
    paged_attention=paged_attention,
    causal_conv=causal_conv,
    gated_delta=gated_delta,
    gated_rms_norm=gated_rms_norm,
    quantize=MLX.quantize,
    argmax=argmax,
    top_k=top_k,
    log_probability=log_probability,
    stack=Fusion(NativeStack, of=tuple(NATIVE_OPS)),
    prepare=prepare,
    zeros=native.zeros,
)

CPU_INT8 = replace(
    CPU,
    name="cpu-int8",
    linear=int8_linear,
    expert_linear=int8_expert_linear,
    stack=Fusion(NativeStack, of=tuple(INT8_OPS)),
    prepare=prepare_int8,
)
