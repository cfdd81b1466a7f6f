"""The pages of all layers, and their number."""

from __future__ import annotations

import mlx.core as mx
import psutil
from tinyllm_layers import PagedCache
from tinyllm_qwen.language_model import LanguageModel

from tinyllm_engine.config import EngineSettings

_ENOUGH = 4 << 30
"""The most bytes taken by default, unless one context needs more."""


class PagePool:
    """Memory for keys and values, taken once: a page holds the same positions in all layers.

    The pages of a draft model's layers hold the keys and values of the same tokens.

    Attributes:
        num_pages: pages that requests can hold.
        page_bytes: bytes of one page, in all layers of both models; with several ranks, on the rank
            with most bytes.
        caches: one for each layer.
        draft_caches: one for each layer of the draft model.
    """

    def __init__(
        self,
        model: LanguageModel,
        settings: EngineSettings,
        draft: LanguageModel | None = None,
    ) -> None:
        """Take the memory.

        Raises:
            ValueError: if the memory is too little for one page, or `kv_bits` does not suit the
                model.
        """
        self._settings = settings
        self._model = model
        self._draft = draft
        models = (model,) if draft is None else (model, draft)
        self.page_bytes = sum(
            each.page_bytes(settings.page_size, kv_bits=settings.kv_bits) for each in models
        )
        self.num_pages = self._count(model.config.context_length)
        self.caches: list[PagedCache] = []
        self.draft_caches: list[PagedCache] = []
        self.renew()

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return sum(cache.nbytes for cache in self._all_caches)

    def renew(self) -> None:
        """Replace all pages by new, empty ones, in the same two lists.

        After a failed step, the old pages may hold a graph whose inputs were given away.
        """
        for caches in (self.caches, self.draft_caches):
            caches.clear()  # before the new ones are made: there is no memory for both
        self.caches += self._pages(self._model, self.num_pages)
        if self._draft is not None:
            self.draft_caches += self._pages(self._draft, self.num_pages)
        mx.eval([array for cache in self._all_caches for array in cache.arrays])

    @property
    def _all_caches(self) -> list[PagedCache]:
        return [*self.caches, *self.draft_caches]

    def _pages(self, model: LanguageModel, count: int) -> list[PagedCache]:
        """Make empty pages for all layers of a model."""
        settings = self._settings
        return model.make_pages(count, settings.page_size, kv_bits=settings.kv_bits)

    def _count(self, context_length: int) -> int:
        """Return the number of pages that the settings ask for, or need."""
        settings = self._settings
        limit = settings.memory_bytes
        if limit is not None:
            if limit < self.page_bytes:
                raise ValueError(
                    f"memory_bytes: expected at least {self.page_bytes}, what one page of "
                    f"{settings.page_size} tokens takes, got {limit}: give more"
                )
            return limit // self.page_bytes
        context = -(-context_length // settings.page_size)
        free = int(psutil.virtual_memory().available) // 2 // self.page_bytes
        # Tens of gigabytes take as many seconds to touch: more than that is taken on request only.
        wanted = min(settings.max_running * context, max(context, _ENOUGH // self.page_bytes))
        return max(1, min(wanted, free))
