"""The ops of the backends for CPUs, and their layout of weights. `stack` adds the stack of layers.

`softmax` and `quantize` are the functions of the OpSet `MLX`.
"""

from dataclasses import replace

from tinyllm_layers import Backend
from tinyllm_ops import MLX

from tinyllm_kernels import _cpu as native
from tinyllm_kernels.cpu.attention import attention, paged_attention
from tinyllm_kernels.cpu.prepare import prepare, prepare_int8, prepared_bytes
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

CPU_OPS = Backend(
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
    prepare=prepare,
    prepared_bytes=prepared_bytes,
    zeros=native.zeros,
)

CPU_INT8_OPS = replace(
    CPU_OPS,
    name="cpu-int8",
    linear=int8_linear,
    expert_linear=int8_expert_linear,
    prepare=prepare_int8,
)
"""The same ops with products that round activations to 8 bits."""
