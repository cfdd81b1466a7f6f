"""Types of the C++ extension (native/mlx/bindings.cpp), whose kernels are primitives of MLX.

Arguments are those of the contract (`tinyllm_ops.OpSet`), checked by the caller.
"""

import mlx.core as mx
from tinyllm_ops import Phase

NativeWeight = tuple[mx.array, mx.array | None, mx.array | None, int, int, str, int, bool]
"""Numbers or codes, scales, biases; group size, bits, mode; rows that are interleaved, or 0; True
if products may round the other operand to 8 bits."""

NativeProjection = tuple[NativeWeight, mx.array | None]
"""A weight and its bias."""

NativeNorm = tuple[mx.array, float]
"""Weight and eps."""

PageTableArrays = tuple[mx.array, mx.array, mx.array, mx.array, mx.array]
"""block_tables, cu_seqlens_q, seq_lens, positions and slot_mapping, all int32."""

StateTableArrays = tuple[mx.array, mx.array, mx.array]
"""cu_seqlens, load_slots and save_slots, all int32."""

GroupStateArrays = tuple[list[mx.array], list[StateTableArrays], list[int]]
"""The arrays of all recurrent layers, the tables, and the index of the table of each layer."""

class AttentionHandle:
    """A handle of the weights of an attention layer."""

    def __init__(
        self,
        norm: NativeNorm,
        q: NativeProjection,
        k: NativeProjection,
        v: NativeProjection,
        o: NativeProjection,
        head_dim: int,
        rope: tuple[mx.array, bool, float],
        q_norm: NativeNorm | None,
        k_norm: NativeNorm | None,
        gate: NativeWeight | None = None,
    ) -> None: ...

class DeltaNetHandle:
    """A handle of the weights of a gated DeltaNet layer."""

    def __init__(
        self,
        norm: NativeNorm,
        projections: list[NativeWeight],
        conv: mx.array,
        a_log: mx.array,
        dt_bias: mx.array,
        head_norm: NativeNorm,
        key_heads: int,
        key_dim: int,
    ) -> None:
        """Hold the weights; `projections` are those of q, k and v together, z, b, a and o."""

class FeedForwardHandle:
    """A handle of the weights of an MLP or of a mixture of experts."""

class LayerGroup:
    """The handles of consecutive layers, which one primitive computes."""

def layer_group(
    halves: list[tuple[AttentionHandle | DeltaNetHandle, FeedForwardHandle]],
) -> LayerGroup: ...
def mlp_handle(
    norm: NativeNorm, gate: NativeWeight, up: NativeWeight, down: NativeWeight, adds_residual: bool
) -> FeedForwardHandle: ...
def moe_handle(
    norm: NativeNorm,
    router: NativeWeight,
    gate: NativeWeight,
    up: NativeWeight,
    down: NativeWeight,
    experts_per_token: int,
    normalizes_routing_weights: bool,
    shared: list[NativeWeight] = ...,
) -> FeedForwardHandle:
    """Hold the weights; `shared` are gate, up, down and `shared_gate` of an expert."""

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
def feed_forward(
    x: mx.array, handle: FeedForwardHandle, phase: Phase | None = None
) -> mx.array: ...
def project_qkv(
    x: mx.array, handle: AttentionHandle, positions: mx.array, phase: Phase | None = None
) -> list[mx.array]: ...
def layers(
    x: mx.array,
    group: LayerGroup,
    caches: list[mx.array],
    offset: int,
    phase: Phase | None = None,
    states: GroupStateArrays = ...,
) -> list[mx.array]: ...
def paged_layers(
    x: mx.array,
    group: LayerGroup,
    caches: list[mx.array],
    page_format: tuple[int, int],
    pages: PageTableArrays,
    window: int,
    phase: Phase | None = None,
    states: GroupStateArrays = ...,
    without_tokens: bool = False,
) -> list[mx.array]: ...

class Loan:
    """Arrays of caches that a stack keeps between passes."""

    def __init__(self, group: LayerGroup, arrays: list[mx.array]) -> None: ...
    def layers(
        self, x: mx.array, group: LayerGroup, offset: int, phase: Phase | None
    ) -> mx.array: ...
    def paged_layers(
        self,
        x: mx.array,
        group: LayerGroup,
        page_format: tuple[int, int],
        pages: PageTableArrays,
        window: int,
        phase: Phase | None,
        without_tokens: bool = False,
    ) -> mx.array: ...
    def end(self, drops_last: bool) -> list[mx.array]: ...

def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array: ...
def output_gate(x: mx.array, gate: mx.array) -> mx.array: ...
def swiglu(gate: mx.array, up: mx.array) -> mx.array: ...
def rope(
    x: mx.array, positions: mx.array, frequencies: mx.array, traditional: bool, magnitude: float
) -> mx.array: ...
def causal_conv(
    x: mx.array, weight: mx.array, state: mx.array, state_table: StateTableArrays
) -> list[mx.array]: ...
def gated_delta(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    a: mx.array,
    b: mx.array,
    a_log: mx.array,
    dt_bias: mx.array,
    state: mx.array,
    state_table: StateTableArrays,
) -> list[mx.array]: ...
def gated_rms_norm(x: mx.array, gate: mx.array, weight: mx.array, eps: float) -> mx.array: ...
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
    block_tables: mx.array,
    cu_seqlens_q: mx.array,
    seq_lens: mx.array,
    scale: float,
    window: int,
    phase: Phase | None = None,
) -> mx.array: ...
def fastest_layout(w: NativeWeight) -> tuple[int, int]: ...
def widen(packed: mx.array, bits: int) -> mx.array: ...
def uses_int8_activations(w: NativeWeight) -> bool: ...
def interleave(array: mx.array, rows: int) -> mx.array: ...
def zeros(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array: ...
def use_huge_pages(x: mx.array) -> None: ...
def copied_bytes() -> int: ...
def instruction_sets() -> list[str]: ...
def chosen_instruction_set() -> str: ...
def thread_count() -> int: ...
