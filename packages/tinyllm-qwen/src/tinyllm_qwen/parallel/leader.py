"""The model of the rank that leads."""

import weakref
from collections.abc import Sequence
from typing import cast

import mlx.core as mx
from jaxtyping import Float, Integer
from tinyllm_layers import KVCache, LayerCache, PagedCache

from tinyllm_qwen.model import Qwen
from tinyllm_qwen.parallel.line import Line
from tinyllm_qwen.parallel.orders import (
    CopyPages,
    CountPages,
    DropCache,
    FindBest,
    MakeCache,
    MakePages,
    Order,
    PagedPass,
    Pass,
    Score,
    encoded,
)
from tinyllm_qwen.sampling.best_tokens import BestTokens


class Leader(Qwen):
    """A model whose every pass is that of all ranks: before it computes, it tells the others.

    What is asked for is computed at once and not when somebody looks at it, since the others do
    their part in any case: sums that one rank leaves out are sums that the others wait for.
    """

    def __init__(self, model: Qwen, lines: Sequence[Line]) -> None:
        """Lead with this rank's part of a model.

        Args:
            model: the part, loaded with a group.
            lines: to all other ranks.
        """
        vars(self).update(vars(model))  # the same weights in the same blocks
        self._lines = lines
        self._numbers: weakref.WeakKeyDictionary[LayerCache, int] = weakref.WeakKeyDictionary()
        self._dropped: list[int] = []
        self._made = 0
        self._length = 0
        self._in_step = True

    def make_cache(
        self, *, kv_bits: int | None = None, max_size: int | None = None
    ) -> list[KVCache]:
        """Make caches here and everywhere; see `Qwen.make_cache`."""
        caches = super().make_cache(kv_bits=kv_bits, max_size=max_size)
        self._tell(MakeCache(self._number(caches[0]), kv_bits, max_size))
        return caches

    def make_pages(
        self, count: int, page_size: int, *, kv_bits: int | None = None
    ) -> list[PagedCache]:
        """Make pages here and everywhere; see `Qwen.make_pages`."""
        pages = super().make_pages(count, page_size, kv_bits=kv_bits)
        self._tell(MakePages(self._number(pages[0]), count, page_size, kv_bits))
        return pages

    def pages_within(self, memory_bytes: int, page_size: int, *, kv_bits: int | None = None) -> int:
        """Count on all ranks; see `Qwen.pages_within`."""
        self._tell(CountPages(memory_bytes, page_size, kv_bits))
        count = super().pages_within(memory_bytes, page_size, kv_bits=kv_bits)
        self._in_step = True
        return count

    def copy_pages(self, pages: Sequence[PagedCache], pairs: Sequence[tuple[int, int]]) -> None:
        """Copy pages here and everywhere; see `Qwen.copy_pages`."""
        self._tell(CopyPages(self._numbers[pages[0]], [list(pair) for pair in pairs]))
        super().copy_pages(pages, pairs)

    def hidden(
        self,
        tokens: Integer[mx.array, "B L"],
        cache: Sequence[LayerCache],
        *,
        rows: Sequence[int] | None = None,
    ) -> Float[mx.array, "rows L E"]:
        """Pass tokens through all blocks on all ranks; see `Qwen.hidden`.

        Raises:
            ValueError: if the caches are neither from `make_cache` nor from `make_pages`, or pages
                were not told where the tokens stand.
        """
        self._tell(self._pass(tokens, cache, rows))
        h = self._together(super().hidden(tokens, cache, rows=rows))
        self._length = h.shape[1]
        return h

    def head(self, h: Float[mx.array, "B L E"]) -> Float[mx.array, "B L V"]:
        """Score every possible next token on all ranks; see `Qwen.head`.

        Args:
            h: what the last pass gave, all of it or after its last token.
        """
        self._tell(Score(last_only=h.shape[1] < self._length))
        return self._together(super().head(h))

    def best(self, h: Float[mx.array, "B L E"], k: int) -> BestTokens:
        """Find the likeliest next tokens on all ranks; see `Qwen.best`.

        Args:
            h: what the last pass gave after its last token.
            k: how many are wanted; there may be more.
        """
        self._tell(FindBest(k))
        best = super().best(h, k)
        self._together(best.tokens)
        return best

    def _number(self, cache: LayerCache) -> int:
        """A number for new caches, of which this is the first."""
        number, self._made = self._made, self._made + 1
        self._numbers[cache] = number
        # Told with the next order: what is collected may be so in the middle of one.
        weakref.finalize(cache, self._dropped.append, number).atexit = False
        return number

    def _pass(
        self, tokens: mx.array, cache: Sequence[LayerCache], rows: Sequence[int] | None
    ) -> Pass | PagedPass:
        """What the others have to know of a pass."""
        first = cache[0] if cache else None
        number = None if first is None else self._numbers.get(first)
        if number is not None and isinstance(first, PagedCache) and first.tokens is not None:
            return PagedPass.of(number, tokens, rows, first.tokens)
        if number is not None and isinstance(first, KVCache) and rows is None:
            return Pass(number, first.offset, cast(list[list[int]], tokens.tolist()))
        raise ValueError(
            "cache: expected caches that make_cache of this model made, or pages that make_pages "
            "made and that were told where the tokens stand; rows of the latter alone"
        )

    def _tell(self, order: Order) -> None:
        """Tell all ranks, which from now on wait for this one to do the same."""
        if not self._in_step:
            raise RuntimeError(
                "the ranks are out of step: an answer was stopped in the middle of a pass. Start "
                "the program again, on all of them"
            )
        told = [encoded(DropCache(number)) for number in self._dropped]
        self._dropped.clear()
        for line in self._lines:
            line.send(b"".join([*told, encoded(order)]))
        self._in_step = not isinstance(order, CountPages | Pass | PagedPass | Score | FindBest)

    def _together(self, array: mx.array) -> mx.array:
        """Begin to compute what the others were told to."""
        mx.async_eval(array)
        self._in_step = True
        return array
