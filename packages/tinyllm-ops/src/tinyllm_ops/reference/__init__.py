"""The reference implementation of every op, in array operations: the standard for other OpSets."""

from tinyllm_ops.opset import OpSet
from tinyllm_ops.reference.attention import scaled_dot_product_attention_grouped
from tinyllm_ops.reference.delta_net import causal_conv, gated_delta, gated_rms_norm
from tinyllm_ops.reference.linear import expert_linear, linear
from tinyllm_ops.reference.paged_attention import paged_attention
from tinyllm_ops.reference.quantize import quantize
from tinyllm_ops.reference.rope import rope
from tinyllm_ops.reference.rowwise import (
    argmax,
    embedding,
    log_probability,
    rms_norm,
    softmax,
    swiglu,
    top_k,
)

REFERENCE = OpSet(
    name="reference",
    linear=linear,
    expert_linear=expert_linear,
    embedding=embedding,
    softmax=softmax,
    swiglu=swiglu,
    rms_norm=rms_norm,
    rope=rope,
    attention=scaled_dot_product_attention_grouped,
    paged_attention=paged_attention,
    causal_conv=causal_conv,
    gated_delta=gated_delta,
    gated_rms_norm=gated_rms_norm,
    quantize=quantize,
    argmax=argmax,
    top_k=top_k,
    log_probability=log_probability,
)
