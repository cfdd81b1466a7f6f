"""The memory for the pages and the recurrent states of all layers."""

from collections.abc import Sequence

from tinyllm_layers import PagedCache, RecurrentPool
from tinyllm_qwen.language_model import LanguageModel

from tinyllm_engine.config import EngineSettings
from tinyllm_engine.kv.memory_plan import plan_memory

PooledCache = PagedCache | RecurrentPool
"""The pages of a layer with attention, or the slots of a recurrent layer."""


class PagePool:
    """Memory for keys, values and recurrent states, allocated once.

    Page number i holds keys and values of the same tokens in all layers of the model, and in all
    layers of the draft model. Slot number i holds the states after the same tokens in all recurrent
    layers of the model.

    Attributes:
        num_pages: number of pages that requests can hold.
        num_slots: number of slots of recurrent state, those for snapshots included.
        plan: the division of the memory.
        page_bytes: bytes of one page, in all layers of both models. With several ranks, the largest
            number of all ranks.
        caches: one cache for each layer of the model.
        draft_caches: one cache for each layer of the draft model; empty without a draft model.
    """

    def __init__(
        self,
        model: LanguageModel,
        settings: EngineSettings,
        draft_model: LanguageModel | None = None,
    ) -> None:
        """Allocate the memory.

        Raises:
            MemorySettingError: if the memory is too little; see `plan_memory`.
            ValueError: if `kv_bits` does not fit the model, or the draft model has recurrent
                layers.
        """
        if draft_model is not None and draft_model.state_bytes():
            raise ValueError(
                "draft_model: expected a model without recurrent layers, because its states after "
                "rejected draft tokens cannot be removed: choose another draft model"
            )
        self._settings = settings
        self._model = model
        self._draft_model = draft_model
        models = (model,) if draft_model is None else (model, draft_model)
        self.page_bytes = sum(
            each.page_bytes(settings.page_size, kv_bits=settings.kv_bits) for each in models
        )
        longest = model.config.context_length
        context = min(longest, settings.max_model_len or longest)
        self.plan = plan_memory(settings, self.page_bytes, model.state_bytes(), context)
        self.num_pages = self.plan.num_pages
        self.num_slots = self.plan.num_states + self.plan.num_snapshots
        self.caches: list[PooledCache] = []
        self.draft_caches: list[PooledCache] = []
        self.renew()

    @property
    def max_cached_pages(self) -> int | None:
        """The most pages that only the prefix cache holds; None for no limit."""
        limit = self._settings.prefix_cache_memory_bytes
        return None if limit is None else limit // self.page_bytes

    def renew(self) -> None:
        """Replace all pages and slots by new, empty ones.

        The lists `caches` and `draft_caches` stay, because the runners refer to them. After a
        failed step, the arrays of old pages may depend on inputs that were overwritten in place.
        """
        for caches in (self.caches, self.draft_caches):
            caches.clear()  # free the old pages first: memory may not hold both
        self.caches += self._make(self._model, self.num_slots)
        if self._draft_model is not None:
            self.draft_caches += self._make(self._draft_model, 0)

    def _make(self, model: LanguageModel, slots: int) -> Sequence[PooledCache]:
        """Make empty pages and slots for all layers of a model."""
        settings = self._settings
        return model.make_pages(
            self.num_pages, settings.page_size, kv_bits=settings.kv_bits, state_slots=slots
        )
