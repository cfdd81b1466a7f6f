"""The memory for the pages of all layers."""

from __future__ import annotations

import mlx.core as mx
import psutil
from tinyllm_layers import PagedCache
from tinyllm_qwen.language_model import LanguageModel

from tinyllm_engine.config import EngineSettings

_DEFAULT_BYTES = 4 << 30
"""The most bytes allocated by default, unless one context needs more."""


class PagePool:
    """Memory for keys and values, allocated once.

    Page number i holds keys and values of the same tokens in all layers of the model, and in all
    layers of the draft model.

    Attributes:
        num_pages: number of pages that requests can hold.
        page_bytes: bytes of one page, in all layers of both models. With several ranks, the largest
            number of all ranks.
        caches: one cache for each layer of the model.
        draft_caches: one cache for each layer of the draft model; empty without a draft model.
    """

    def __init__(
        self,
        model: LanguageModel,
        settings: EngineSettings,
        draft: LanguageModel | None = None,
    ) -> None:
        """Allocate the memory.

        Raises:
            ValueError: if the memory is too little for one page, or `kv_bits` does not fit the
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
        """Replace all pages by new, empty pages.

        The lists `caches` and `draft_caches` stay, because the runners refer to them. After a
        failed step, the arrays of old pages may depend on inputs that were overwritten in place.
        """
        for caches in (self.caches, self.draft_caches):
            caches.clear()  # free the old pages first: memory may not hold both
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
        caches = model.make_pages(count, settings.page_size, kv_bits=settings.kv_bits)
        pages = [cache for cache in caches if isinstance(cache, PagedCache)]
        if len(pages) < len(caches):
            raise ValueError(
                f"model: {model.config.model_type} has recurrent layers, which the engine does not "
                "run yet: use `chat`, or `generate`"
            )
        return pages

    def _count(self, context_length: int) -> int:
        """Return the number of pages for `memory_bytes`, or a default; see `EngineSettings`."""
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
        # Touching a gigabyte takes about a second, so the default is limited.
        limit_pages = max(context, _DEFAULT_BYTES // self.page_bytes)
        wanted = min(settings.max_running * context, limit_pages)
        return max(1, min(wanted, free))
