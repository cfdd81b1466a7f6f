"""A request on its way through the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from tinyllm_engine.kv.block_hash import page_keys
from tinyllm_engine.request import Request


@dataclass(eq=False)
class Sequence:
    """The tokens of a request, and how far they are computed. No tensors, no policy.

    All tokens of the prompt but the last are prefilled, many at a time. The last one, and each that
    is chosen after it, is decoded: it goes through the model to choose the next. After a
    preemption, chosen tokens are decoded again, several at a time, with the same result.

    Attributes:
        request: what was asked.
        arrival: how many requests came before.
        tokens: prompt and chosen tokens.
        computed: of how many tokens the keys and values are in the pages.
        pages: the block table: which page holds tokens i page_size to (i + 1) page_size.
        cached: tokens of the prompt that the prefix cache had at the first admission.
        draft: guesses at the next tokens, computed with the last one and kept as far as right.
    """

    request: Request
    arrival: int
    tokens: list[int]
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    cached: int | None = None
    draft: list[int] = field(default_factory=list)
    _keys: list[bytes] = field(default_factory=list)

    @property
    def prefill_end(self) -> int:
        """Where decoding begins."""
        return len(self.request.prompt) - 1

    @property
    def is_prefilling(self) -> bool:
        """Whether tokens of the prompt are still to be prefilled."""
        return self.computed < self.prefill_end

    @property
    def generated(self) -> int:
        """Tokens chosen so far."""
        return len(self.tokens) - len(self.request.prompt)

    def keys(self, page_size: int) -> list[bytes]:
        """The keys of its full pages, computed or not."""
        self._keys = page_keys(self.tokens, page_size, self._keys)
        return self._keys
