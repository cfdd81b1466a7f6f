"""The backend for CPUs: native ops, a native stack of layers, and a layout of weights for both.

`softmax` and `quantize` are the functions of the OpSet `MLX`.
"""

from __future__ import annotations

from tinyllm_layers import Backend
from tinyllm_ops import MLX, Fusion

from tinyllm_kernels.cpu.attention import attention, paged_attention
from tinyllm_kernels.cpu.handles import NATIVE_OPS
from tinyllm_kernels.cpu.prepare import prepare
from tinyllm_kernels.cpu.products import embedding, expert_linear, linear
from tinyllm_kernels.cpu.rowwise import rms_norm, rope, swiglu
from tinyllm_kernels.cpu.scores import argmax, log_probability, top_k
from tinyllm_kernels.cpu.stack import NativeStack

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
    causal_conv=MLX.causal_conv,
    gated_delta=MLX.gated_delta,
    gated_rms_norm=MLX.gated_rms_norm,
    quantize=MLX.quantize,
    argmax=argmax,
    top_k=top_k,
    log_probability=log_probability,
    stack=Fusion(NativeStack, of=tuple(NATIVE_OPS)),
    prepare=prepare,
)
