"""The contract of all ops: the signature of each op, and `OpSet`, one implementation of each."""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import mlx.core as mx
from jaxtyping import Bool, Float, Float32, Int32, Integer

from tinyllm_ops.fusion import Fusion, bind_fusions
from tinyllm_ops.page_table import PageTable
from tinyllm_ops.phase import Phase
from tinyllm_ops.quantization.tensor import AFFINE, QuantizationMode, QuantizedTensor, Weight
from tinyllm_ops.rotary_frequencies import Yarn
from tinyllm_ops.state_table import StateTable

Positions = slice | mx.array
"""Positions of L tokens: a slice for all rows, or integers `L` or `B L`.

`slice(5, 10)` puts 5 tokens at positions 5 to 9."""

Mask = Float[mx.array, "..."] | Bool[mx.array, "..."] | Literal["causal"] | None
"""An attention mask: a floating array is added to the scores, and a boolean array is True where a
key is visible. "causal" hides later tokens, and None hides nothing."""


@runtime_checkable
class LinearOp(Protocol):
    """The type of `OpSet.linear`."""

    def __call__(
        self,
        x: Float[mx.array, "*batch I"],
        w: Weight,
        bias: Float[mx.array, "O"] | None = None,
        residual: Float[mx.array, "*batch O"] | None = None,
        *,
        phase: Phase | None = None,
    ) -> Float[mx.array, "*batch O"]:
        """See `tinyllm_ops.linear`."""


@runtime_checkable
class ExpertLinearOp(Protocol):
    """The type of `OpSet.expert_linear`."""

    def __call__(
        self,
        x: Float[mx.array, "*batch I"],
        w: Weight,
        experts: Integer[mx.array, "*batch"],
        *,
        phase: Phase | None = None,
    ) -> Float[mx.array, "*batch O"]:
        """See `tinyllm_ops.expert_linear`."""


@runtime_checkable
class EmbeddingOp(Protocol):
    """The type of `OpSet.embedding`."""

    def __call__(self, ids: Integer[mx.array, "*batch"], w: Weight) -> Float[mx.array, "*batch E"]:
        """See `tinyllm_ops.embedding`."""


@runtime_checkable
class SoftmaxOp(Protocol):
    """The type of `OpSet.softmax`."""

    def __call__(self, x: Float[mx.array, "*shape"], axis: int = -1) -> Float[mx.array, "*shape"]:
        """See `tinyllm_ops.softmax`."""


@runtime_checkable
class SwigluOp(Protocol):
    """The type of `OpSet.swiglu`."""

    def __call__(
        self, gate: Float[mx.array, "*shape"], up: Float[mx.array, "*shape"]
    ) -> Float[mx.array, "*shape"]:
        """See `tinyllm_ops.swiglu`."""


@runtime_checkable
class RmsNormOp(Protocol):
    """The type of `OpSet.rms_norm`."""

    def __call__(
        self, x: Float[mx.array, "*batch D"], weight: Float[mx.array, "D"], eps: float = 1e-5
    ) -> Float[mx.array, "*batch D"]:
        """See `tinyllm_ops.rms_norm`."""


@runtime_checkable
class RopeOp(Protocol):
    """The type of `OpSet.rope`."""

    def __call__(
        self,
        x: Float[mx.array, "B L H D"],
        positions: Positions = slice(None),
        base: float = 10000.0,
        traditional: bool = False,
        scaling: Yarn | None = None,
        dims: int | None = None,
    ) -> Float[mx.array, "B L H D"]:
        """See `tinyllm_ops.rope`."""


@runtime_checkable
class NormRopeOp(Protocol):
    """The type of the function of `OpSet.norm_rope`."""

    def __call__(
        self,
        x: Float[mx.array, "B L H D"],
        weight: Float[mx.array, "D"] | None,
        eps: float,
        positions: Positions = slice(None),
        base: float = 10000.0,
        traditional: bool = False,
        scaling: Yarn | None = None,
        dims: int | None = None,
    ) -> Float[mx.array, "B H L D"]:
        """See `tinyllm_ops.norm_rope`."""


@runtime_checkable
class AttentionOp(Protocol):
    """The type of `OpSet.attention`."""

    def __call__(
        self,
        q: Float[mx.array, "*batch H L D"],
        k: Weight,
        v: Weight,
        scale: float | None = None,
        mask: Mask = None,
        *,
        phase: Phase | None = None,
    ) -> Float[mx.array, "*batch H L D"]:
        """See `tinyllm_ops.scaled_dot_product_attention_grouped`."""


@runtime_checkable
class PagedAttentionOp(Protocol):
    """The type of `OpSet.paged_attention`."""

    def __call__(
        self,
        q: Float[mx.array, "T H D"],
        k: Weight,
        v: Weight,
        page_table: PageTable,
        scale: float | None = None,
        window: int | None = None,
        *,
        phase: Phase | None = None,
    ) -> Float[mx.array, "T H D"]:
        """See `tinyllm_ops.paged_attention`."""


@runtime_checkable
class CausalConvOp(Protocol):
    """The type of `OpSet.causal_conv`."""

    def __call__(
        self,
        x: Float[mx.array, "T C"],
        weight: Float[mx.array, "C K"],
        slots: Float[mx.array, "P K-1 C"],
        state_table: StateTable,
    ) -> tuple[Float[mx.array, "T C"], Float[mx.array, "P K-1 C"]]:
        """See `tinyllm_ops.causal_conv`."""


@runtime_checkable
class GatedDeltaOp(Protocol):
    """The type of `OpSet.gated_delta`."""

    def __call__(
        self,
        q: Float[mx.array, "T Hk Dk"],
        k: Float[mx.array, "T Hk Dk"],
        v: Float[mx.array, "T Hv Dv"],
        a: Float[mx.array, "T Hv"],
        b: Float[mx.array, "T Hv"],
        a_log: Float32[mx.array, "Hv"],
        dt_bias: Float[mx.array, "Hv"],
        slots: Float32[mx.array, "P Hv Dv Dk"],
        state_table: StateTable,
    ) -> tuple[Float[mx.array, "T Hv Dv"], Float32[mx.array, "P Hv Dv Dk"]]:
        """See `tinyllm_ops.gated_delta`."""


@runtime_checkable
class GatedRmsNormOp(Protocol):
    """The type of `OpSet.gated_rms_norm`."""

    def __call__(
        self,
        x: Float[mx.array, "*batch D"],
        gate: Float[mx.array, "*batch D"],
        weight: Float[mx.array, "D"],
        eps: float = 1e-6,
    ) -> Float[mx.array, "*batch D"]:
        """See `tinyllm_ops.gated_rms_norm`."""


@runtime_checkable
class QuantizeOp(Protocol):
    """The type of `OpSet.quantize`."""

    def __call__(
        self,
        w: Float[mx.array, "*lead I"],
        group_size: int = 64,
        bits: int = 4,
        mode: QuantizationMode = AFFINE,
    ) -> QuantizedTensor:
        """See `tinyllm_ops.quantize`."""


@runtime_checkable
class ArgmaxOp(Protocol):
    """The type of `OpSet.argmax`."""

    def __call__(self, x: Float[mx.array, "*batch V"]) -> Int32[mx.array, "*batch"]:
        """See `tinyllm_ops.argmax`."""


@runtime_checkable
class TopKOp(Protocol):
    """The type of `OpSet.top_k`."""

    def __call__(
        self, x: Float[mx.array, "*batch V"], k: int
    ) -> tuple[Float[mx.array, "*batch k"], Int32[mx.array, "*batch k"]]:
        """See `tinyllm_ops.top_k`."""


@runtime_checkable
class LogProbabilityOp(Protocol):
    """The type of `OpSet.log_probability`."""

    def __call__(
        self, x: Float[mx.array, "*batch V"], ids: Integer[mx.array, "*batch K"]
    ) -> Float32[mx.array, "*batch K"]:
        """See `tinyllm_ops.log_probability`."""


@dataclass(frozen=True)
class OpSet:
    """One implementation of each op. Layers call ops through an OpSet, never a backend directly.

    Two OpSets give the same numbers up to the rounding of the dtype. Both refuse the same arguments
    with the same messages (`tinyllm_ops.checks`). To try an op of your own, replace the field:

        ops = dataclasses.replace(REFERENCE, rope=my_rope)

    `my_rope` then runs wherever a layer calls `rope`. Fusions that stand for `rope` are dropped,
    with a warning that names them. Ops do not call each other through the OpSet: `paged_attention`
    does not call a replaced `attention`, nor does `attention` call a replaced `softmax`.

    Attributes:
        name: name of the implementation, such as "reference".
        norm_rope: a fusion of `rms_norm` and `rope`, or None. Layers call the function
            `tinyllm_ops.norm_rope`, which composes the two ops where there is no fusion.
    """

    name: str
    linear: LinearOp
    expert_linear: ExpertLinearOp
    embedding: EmbeddingOp
    softmax: SoftmaxOp
    swiglu: SwigluOp
    rms_norm: RmsNormOp
    rope: RopeOp
    attention: AttentionOp
    paged_attention: PagedAttentionOp
    causal_conv: CausalConvOp
    gated_delta: GatedDeltaOp
    gated_rms_norm: GatedRmsNormOp
    quantize: QuantizeOp
    argmax: ArgmaxOp
    top_k: TopKOp
    log_probability: LogProbabilityOp
    norm_rope: Fusion[NormRopeOp] | None = None

    def __post_init__(self) -> None:
        """Bind fusions to the ops that they stand for; drop fusions of replaced ops."""
        bind_fusions(self, self.name)
