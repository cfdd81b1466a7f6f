"""The OpSet that is written to be read: array operations only."""

from tinyllm_ops.argmax import argmax
from tinyllm_ops.attention import scaled_dot_product_attention_grouped
from tinyllm_ops.embedding import embedding
from tinyllm_ops.expert_linear import expert_linear
from tinyllm_ops.linear import linear
from tinyllm_ops.log_probability import log_probability
from tinyllm_ops.opset import OpSet
from tinyllm_ops.paged_attention import paged_attention
from tinyllm_ops.quantization import quantize
from tinyllm_ops.rms_norm import rms_norm
from tinyllm_ops.rope import rope
from tinyllm_ops.silu import silu, swiglu
from tinyllm_ops.softmax import softmax
from tinyllm_ops.top_k import top_k

REFERENCE = OpSet(
    name="reference",
    linear=linear,
    expert_linear=expert_linear,
    embedding=embedding,
    softmax=softmax,
    silu=silu,
    swiglu=swiglu,
    rms_norm=rms_norm,
    rope=rope,
    attention=scaled_dot_product_attention_grouped,
    paged_attention=paged_attention,
    quantize=quantize,
    argmax=argmax,
    top_k=top_k,
    log_probability=log_probability,
)
