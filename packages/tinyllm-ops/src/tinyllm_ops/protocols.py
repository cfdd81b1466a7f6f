"""What each op is to those who are handed an implementation of it: the types of OpSet's fields."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import mlx.core as mx
from jaxtyping import Float, Float32, Int32, Integer

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
        self, x: Float[mx.array, "*batch I"], w: Weight, experts: Integer[mx.array, "*batch"]
    ) -> Float[mx.array, "*batch O"]:
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
class PagedAttention(Protocol):
    """What `paged_attention` is to a cache that many requests share."""

    def __call__(
        self,
        q: Float[mx.array, "T H D"],
        k: Weight,
        v: Weight,
        block_table: Int32[mx.array, "R blocks"],
        query_starts: Int32[mx.array, "R+1"],
        context_lengths: Int32[mx.array, "R"],
        scale: float | None = None,
        window: int | None = None,
    ) -> Float[mx.array, "T H D"]:
        """See `tinyllm_ops.paged_attention`."""
        ...


@runtime_checkable
class Argmax(Protocol):
    """What `argmax` is to a sampler."""

    def __call__(self, x: Float[mx.array, "*batch V"]) -> Int32[mx.array, "*batch"]:
        """See `tinyllm_ops.argmax`."""
        ...


@runtime_checkable
class TopK(Protocol):
    """What `top_k` is to a sampler."""

    def __call__(
        self, x: Float[mx.array, "*batch V"], k: int
    ) -> tuple[Float[mx.array, "*batch k"], Int32[mx.array, "*batch k"]]:
        """See `tinyllm_ops.top_k`."""
        ...


@runtime_checkable
class LogProbability(Protocol):
    """What `log_probability` is to a sampler."""

    def __call__(
        self, x: Float[mx.array, "*batch V"], ids: Integer[mx.array, "*batch K"]
    ) -> Float32[mx.array, "*batch K"]:
        """See `tinyllm_ops.log_probability`."""
        ...


@runtime_checkable
class Quantize(Protocol):
    """What `quantize` is to a cache."""

    def __call__(
        self, w: Float[mx.array, "*lead I"], group_size: int = 64, bits: int = 4, mode: str = AFFINE
    ) -> QuantizedTensor:
        """See `tinyllm_ops.quantize`."""
        ...
