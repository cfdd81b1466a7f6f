"""The pages of all layers, and how many there are."""

from __future__ import annotations

import mlx.core as mx
import psutil
from tinyllm_ops import QuantizedTensor, Weight
from tinyllm_qwen import Qwen

from tinyllm_engine.paged_cache import PagedCache
from tinyllm_engine.settings import EngineSettings

_ENOUGH = 4 << 30
"""Bytes that are taken without having been asked for, unless one context needs more."""


class PagePool:
    """Memory for keys and values, taken once: a page is the same numbers of tokens in all layers.

    A draft model has layers like any other: its keys and values of the same tokens.

    Attributes:
        num_pages: pages that sequences can hold.
        page_bytes: what one of them takes in all layers of both models.
        caches: one for each layer.
        draft_caches: one for each layer of the draft model.
    """

    def __init__(self, model: Qwen, settings: EngineSettings, draft: Qwen | None = None) -> None:
        """Take the memory.

        Raises:
            ValueError: if it is too little for one page, or `kv_bits` does not suit the model.
        """
        self._settings = settings
        models = (model,) if draft is None else (model, draft)
        self.page_bytes = sum(
            each.config.num_hidden_layers * 2 * self._pages(each, 1).nbytes for each in models
        )
        self.num_pages = self._affordable(model.config.context_length)
        self.caches = self._layers(model)
        self.draft_caches = [] if draft is None else self._layers(draft)
        mx.eval([array for cache in self._all_caches for array in cache.arrays])

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return sum(cache.nbytes for cache in self._all_caches)

    @property
    def _all_caches(self) -> list[PagedCache]:
        return [*self.caches, *self.draft_caches]

    def _layers(self, model: Qwen) -> list[PagedCache]:
        """Empty pages of all layers of a model."""
        window = model.config.sliding_window
        sizes = (
            window.size if window is not None and layer in window.layers else None
            for layer in range(model.config.num_hidden_layers)
        )
        return [
            PagedCache(self._pages(model, self.num_pages), self._pages(model, self.num_pages), size)
            for size in sizes
        ]

    def _pages(self, model: Qwen, count: int) -> Weight:
        """Empty pages of one layer's keys, or values."""
        config, bits = model.config, self._settings.kv_bits
        lead = (count, config.num_key_value_heads, self._settings.page_size)
        if bits is None:
            return mx.zeros((*lead, config.head_dim), model.dtype)
        group_size = _group_size(config.head_dim)
        groups = (*lead, config.head_dim // group_size)
        return QuantizedTensor(
            mx.zeros((*lead, config.head_dim * bits // 32), mx.uint32),
            mx.zeros(groups, model.dtype),
            mx.zeros(groups, model.dtype),
            group_size,
            bits,
        )

    def _affordable(self, context_length: int) -> int:
        """How many pages the settings allow, or need."""
        settings = self._settings
        limit = settings.memory_bytes
        if limit is not None:
            if limit < self.page_bytes:
                raise ValueError(
                    f"memory_bytes: expected at least {self.page_bytes}, what one page of "
                    f"{settings.page_size} tokens takes, got {limit}"
                )
            return limit // self.page_bytes
        context = -(-context_length // settings.page_size)
        free = int(psutil.virtual_memory().available) // 2 // self.page_bytes
        # To touch tens of gigabytes takes as many seconds: more than that is to be asked for.
        wanted = min(settings.max_running * context, max(context, _ENOUGH // self.page_bytes))
        return max(1, min(wanted, free))


def _group_size(head_dim: int) -> int:
    """The widest group that divides the head dim."""
    for group_size in (64, 32):
        if head_dim % group_size == 0:
            return group_size
    raise ValueError(f"kv_bits: expected a head dim in groups of 32, the model has {head_dim}")
