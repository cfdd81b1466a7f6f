"""Types of the C++ extension (native/bindings.cpp), whose kernels are primitives of MLX.

Arguments are those of the contract (`tinyllm_ops.OpSet`), checked by the caller.
"""

import mlx.core as mx
from tinyllm_ops import Phase

NativeWeight = tuple[mx.array, mx.array | None, mx.array | None, int, int, str, int]
"""Numbers or codes, scales, biases; group size, bits, mode; rows that are interleaved, or 0."""

NativeProjection = tuple[NativeWeight, mx.array | None]
"""A weight and its bias."""

NativeNorm = tuple[mx.array | None, float]
"""Weight and eps; no weight is no norm."""

PageTableArrays = tuple[mx.array, mx.array, mx.array, mx.array, mx.array]
"""block_tables, cu_seqlens_q, seq_lens, positions and slot_mapping, all int32."""

class AttentionWeights:
    """A handle of the weights of an attention layer."""

    def __init__(
        self,
        norm: NativeNorm,
        q: NativeProjection,
        k: NativeProjection,
        v: NativeProjection,
        o: NativeProjection,
        head_dim: int,
        rotary: tuple[mx.array, bool, float],
        q_norm: NativeNorm,
        k_norm: NativeNorm,
        residual: bool,
    ) -> None: ...

class FeedForward:
    """A handle of the weights of an MLP or of a mixture of experts."""

def mlp_weights(
    norm: NativeNorm, gate: NativeWeight, up: NativeWeight, down: NativeWeight, residual: bool
) -> FeedForward: ...
def moe_weights(
    norm: NativeNorm,
    router: NativeWeight,
    gate: NativeWeight,
    up: NativeWeight,
    down: NativeWeight,
    chosen: int,
    shares_add_to_1: bool,
    residual: bool,
) -> FeedForward: ...
def linear(
    x: mx.array,
    w: NativeWeight,
    bias: mx.array | None,
    residual: mx.array | None = None,
    phase: Phase | None = None,
) -> mx.array: ...
def expert_linear(
    x: mx.array, w: NativeWeight, experts: mx.array, phase: Phase | None = None
) -> mx.array: ...
def embedding(ids: mx.array, w: NativeWeight, dtype: mx.Dtype) -> mx.array: ...
def feed_forward(x: mx.array, half: FeedForward, phase: Phase | None = None) -> mx.array: ...
def attention_inputs(
    x: mx.array, block: AttentionWeights, positions: mx.array, phase: Phase | None = None
) -> list[mx.array]: ...
def blocks(
    x: mx.array,
    attention: list[AttentionWeights],
    second: list[FeedForward],
    stores: list[mx.array],
    offset: int,
    phase: Phase | None = None,
) -> list[mx.array]: ...
def paged_blocks(
    x: mx.array,
    attention: list[AttentionWeights],
    second: list[FeedForward],
    stores: list[NativeWeight],
    pages: PageTableArrays,
    window: int,
    phase: Phase | None = None,
) -> list[mx.array]: ...
def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array: ...
def swiglu(gate: mx.array, up: mx.array) -> mx.array: ...
def rope(
    x: mx.array, positions: mx.array, frequencies: mx.array, traditional: bool, magnitude: float
) -> mx.array: ...
def argmax(x: mx.array) -> mx.array: ...
def top_k(x: mx.array, k: int) -> list[mx.array]: ...
def log_probability(x: mx.array, ids: mx.array) -> mx.array: ...
def attention(
    q: mx.array,
    k: NativeWeight,
    v: NativeWeight,
    scale: float,
    causal: bool,
    mask: mx.array | None,
    phase: Phase | None = None,
) -> mx.array: ...
def paged_attention(
    q: mx.array,
    k: NativeWeight,
    v: NativeWeight,
    block_table: mx.array,
    query_starts: mx.array,
    context_lengths: mx.array,
    scale: float,
    window: int,
    phase: Phase | None = None,
) -> mx.array: ...
def interleaves(w: NativeWeight) -> int: ...
def interleave(part: mx.array, side: int) -> mx.array: ...
def use_huge_pages(x: mx.array) -> None: ...
def tiers() -> list[str]: ...
def chosen_tier() -> str: ...
def thread_count() -> int: ...
