"""The contract: everything that a Qwen model computes, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import mlx.core as mx
from jaxtyping import Float, Integer

from tinyllm_ops.contract import Weight
from tinyllm_ops.positions import Positions
from tinyllm_ops.quantized_tensor import AFFINE, QuantizedTensor
from tinyllm_ops.rotary_frequencies import Yarn


@runtime_checkable
class Linear(Protocol):
    """What `linear` is to a layer."""

    def __call__(
        self, x: Float[mx.array, "*batch I"], w: Weight, bias: Float[mx.array, "O"] | None = None
    ) -> Float[mx.array, "*batch O"]:
        """See `tinyllm_ops.linear`."""
        ...


@runtime_checkable
class ExpertLinear(Protocol):
    """What `expert_linear` is to a layer."""

    def __call__(
        self, x: Float[mx.array, "N I"], w: Weight, experts: Integer[mx.array, "N"]
    ) -> Float[mx.array, "N O"]:
        """See `tinyllm_ops.expert_linear`."""
        ...


@runtime_checkable
class Embedding(Protocol):
    """What `embedding` is to a layer."""

    def __call__(self, ids: Integer[mx.array, "*batch"], w: Weight) -> Float[mx.array, "*batch E"]:
        """See `tinyllm_ops.embedding`."""
        ...


@runtime_checkable
class Softmax(Protocol):
    """What `softmax` is to a layer."""

    def __call__(self, x: Float[mx.array, "*shape"], axis: int = -1) -> Float[mx.array, "*shape"]:
        """See `tinyllm_ops.softmax`."""
        ...


@runtime_checkable
class Silu(Protocol):
    """What `silu` is to a layer."""

    def __call__(self, x: Float[mx.array, "*shape"]) -> Float[mx.array, "*shape"]:
        """See `tinyllm_ops.silu`."""
        ...


@runtime_checkable
class Swiglu(Protocol):
    """What `swiglu` is to a layer."""

    def __call__(
        self, gate: Float[mx.array, "*shape"], up: Float[mx.array, "*shape"]
    ) -> Float[mx.array, "*shape"]:
        """See `tinyllm_ops.swiglu`."""
        ...


@runtime_checkable
class RmsNorm(Protocol):
    """What `rms_norm` is to a layer."""

    def __call__(
        self, x: Float[mx.array, "*batch D"], weight: Float[mx.array, "D"], eps: float = 1e-5
    ) -> Float[mx.array, "*batch D"]:
        """See `tinyllm_ops.rms_norm`."""
        ...


@runtime_checkable
class Rope(Protocol):
    """What `rope` is to a layer."""

    def __call__(
        self,
        x: Float[mx.array, "B L H D"],
        positions: Positions = slice(None),
        base: float = 10000.0,
        traditional: bool = False,
        scaling: Yarn | None = None,
    ) -> Float[mx.array, "B L H D"]:
        """See `tinyllm_ops.rope`."""
        ...


@runtime_checkable
class Attention(Protocol):
    """What `scaled_dot_product_attention_grouped` is to a layer."""

    def __call__(
        self,
        q: Float[mx.array, "*batch H L D"],
        k: Weight,
        v: Weight,
        scale: float | None = None,
        mask: Float[mx.array, "..."] | str | None = None,
    ) -> Float[mx.array, "*batch H L D"]:
        """See `tinyllm_ops.scaled_dot_product_attention_grouped`."""
        ...


@runtime_checkable
class Quantize(Protocol):
    """What `quantize` is to a cache."""

    def __call__(
        self, w: Float[mx.array, "*lead I"], group_size: int = 64, bits: int = 4, mode: str = AFFINE
    ) -> QuantizedTensor:
        """See `tinyllm_ops.quantize`."""
        ...


@dataclass(frozen=True)
class OpSet:
    """One implementation of each op; layers take an OpSet and know of no backend.

    Two OpSets give the same numbers up to the rounding of the dtype, and refuse the same
    arguments with the same words (`tinyllm_ops.contract`).
    """

    name: str
    linear: Linear
    expert_linear: ExpertLinear
    embedding: Embedding
    softmax: Softmax
    silu: Silu
    swiglu: Swiglu
    rms_norm: RmsNorm
    rope: Rope
    attention: Attention
    quantize: Quantize
