"""The interface of a model that runs in one process or in several processes."""

from collections.abc import Sequence
from typing import Protocol, TypeVar, runtime_checkable

import mlx.core as mx
from jaxtyping import Float, Integer
from tinyllm_layers import Batch, LayerCache, PagedCache, RecurrentPool, RMSNorm, SequenceCache
from tinyllm_ops import OpSet, Weight

from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.sampling.best_tokens import BestTokens

AnyCache = TypeVar("AnyCache", bound=LayerCache)


@runtime_checkable
class LanguageModel(Protocol):
    """The interface that `generate` and the engine use. `Qwen` and `Driver` implement it."""

    @property
    def config(self) -> QwenConfig:
        """The architecture."""
        ...

    @property
    def ops(self) -> OpSet:
        """The implementation of the maths."""
        ...

    @property
    def dtype(self) -> mx.Dtype:
        """The dtype of activations."""
        ...

    @property
    def norm(self) -> RMSNorm:
        """The norm after the last layer."""
        ...

    @property
    def num_caches(self) -> int:
        """The number of caches: one for each layer in this process, and one for the draft head."""
        ...

    @property
    def num_ranks(self) -> int:
        """The number of processes that share the model."""
        ...

    @property
    def nbytes(self) -> int:
        """The size of the weights of this process in bytes."""
        ...

    def weights(self) -> list[Weight]:
        """List the weights of this process."""
        ...

    def __call__(
        self,
        tokens: Integer[mx.array, "B L"],
        caches: Sequence[LayerCache] | None = None,
        batch: Batch | None = None,
        *,
        last: int | None = None,
        indices: Sequence[int] | None = None,
    ) -> Float[mx.array, "rows n V"]:
        """Return the logits of the next token; see `Qwen`."""
        ...

    def hidden(
        self, tokens: Integer[mx.array, "B L"], batch: Batch, caches: Sequence[LayerCache]
    ) -> Float[mx.array, "B L E"]:
        """Compute the output of the last layer; see `Qwen.hidden`."""
        ...

    def best(
        self,
        tokens: Integer[mx.array, "B L"],
        batch: Batch,
        caches: Sequence[LayerCache],
        k: int,
        *,
        indices: Sequence[int] | None = None,
    ) -> BestTokens:
        """Return the k most likely next tokens; see `Qwen.best`."""
        ...

    def layer_caches(self, caches: Sequence[AnyCache]) -> Sequence[AnyCache]:
        """Return the caches of the decoder layers; see `Qwen.layer_caches`."""
        ...

    def make_caches(
        self, *, kv_bits: int | None = None, max_size: int | None = None
    ) -> list[SequenceCache]:
        """Make empty caches for one sequence; see `Qwen.make_caches`."""
        ...

    def make_pages(
        self, count: int, page_size: int, *, kv_bits: int | None = None, state_slots: int = 0
    ) -> list[PagedCache | RecurrentPool]:
        """Make empty pages for many sequences; see `Qwen.make_pages`."""
        ...

    def copy_pages(self, pages: Sequence[LayerCache], pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages of all layers; see `Qwen.copy_pages`."""
        ...

    def page_bytes(self, page_size: int, *, kv_bits: int | None = None) -> int:
        """Return the size of one page in all layers, in bytes; see `Qwen.page_bytes`."""
        ...

    def state_bytes(self) -> int:
        """Return the bytes of one state in all recurrent layers; see `Qwen.state_bytes`."""
        ...
