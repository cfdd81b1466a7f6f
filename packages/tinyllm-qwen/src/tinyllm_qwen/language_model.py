"""The interface of a model, in one process or in several."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import mlx.core as mx
from jaxtyping import Float, Integer
from tinyllm_layers import Batch, KVCache, LayerCache, PagedCache, RMSNorm
from tinyllm_ops import OpSet, Weight

from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.sampling.best_tokens import BestTokens


@runtime_checkable
class LanguageModel(Protocol):
    """A model as `generate` and the engine use it: `Qwen`, or the `Driver` of several processes."""

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
        """The last norm."""
        ...

    @property
    def num_layers(self) -> int:
        """The number of layers in this process, each with a cache."""
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
        rows: Sequence[int] | None = None,
    ) -> Float[mx.array, "rows n V"]:
        """Score every possible next token; see `Qwen`."""
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
        rows: Sequence[int] | None = None,
    ) -> BestTokens:
        """Find the k best next tokens; see `Qwen.best`."""
        ...

    def make_cache(
        self, *, kv_bits: int | None = None, max_size: int | None = None
    ) -> list[KVCache]:
        """Make empty caches for one sequence; see `Qwen.make_cache`."""
        ...

    def make_pages(
        self, count: int, page_size: int, *, kv_bits: int | None = None
    ) -> list[PagedCache]:
        """Make empty pages for many sequences; see `Qwen.make_pages`."""
        ...

    def copy_pages(self, pages: Sequence[PagedCache], pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages of all layers; see `Qwen.copy_pages`."""
        ...

    def page_bytes(self, page_size: int, *, kv_bits: int | None = None) -> int:
        """Return the bytes of one page in all layers; see `Qwen.page_bytes`."""
        ...
