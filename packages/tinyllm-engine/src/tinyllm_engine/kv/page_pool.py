"""The pages of all layers, and how many there are."""

from __future__ import annotations

import mlx.core as mx
import psutil
from tinyllm_layers import PagedCache
from tinyllm_qwen import Qwen

from tinyllm_engine.config import EngineSettings

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
        self.page_bytes = sum(cache.nbytes for each in models for cache in self._pages(each, 1))
        self.num_pages = self._affordable(model)
        self.caches = self._pages(model, self.num_pages)
        self.draft_caches = [] if draft is None else self._pages(draft, self.num_pages)
        mx.eval([array for cache in self._all_caches for array in cache.arrays])

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return sum(cache.nbytes for cache in self._all_caches)

    @property
    def _all_caches(self) -> list[PagedCache]:
        return [*self.caches, *self.draft_caches]

    def _pages(self, model: Qwen, count: int) -> list[PagedCache]:
        """Empty pages of all layers of a model."""
        settings = self._settings
        return model.make_pages(count, settings.page_size, kv_bits=settings.kv_bits)

    def _affordable(self, model: Qwen) -> int:
        """How many pages the settings allow, or need, in each process that shares the model.

        Others may have more of its heads or layers than this one, and take no more memory for that.
        """
        settings, count = self._settings, self._wanted(model.config.context_length)
        memory_bytes = count * self.page_bytes
        within = model.pages_within(memory_bytes, settings.page_size, kv_bits=settings.kv_bits)
        if not within:
            raise ValueError(
                f"memory_bytes: expected what one page of {settings.page_size} tokens takes in "
                f"each process, got {memory_bytes}, which is less in one of them"
            )
        return min(count, within)

    def _wanted(self, context_length: int) -> int:
        """How many pages the settings allow, or need, in this process."""
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
