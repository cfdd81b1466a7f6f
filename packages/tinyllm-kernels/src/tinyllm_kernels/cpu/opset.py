"""The OpSet of CPU kernels; `softmax` and `quantize` are those of MLX."""

from __future__ import annotations

from tinyllm_ops import MLX, OpSet

from tinyllm_kernels.cpu.attention import attention, paged_attention
from tinyllm_kernels.cpu.products import embedding, expert_linear, linear
from tinyllm_kernels.cpu.rowwise import rms_norm, rope, swiglu
from tinyllm_kernels.cpu.scores import argmax, log_probability, top_k

CPU = OpSet(
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
    quantize=MLX.quantize,
    argmax=argmax,
    top_k=top_k,
    log_probability=log_probability,
)
