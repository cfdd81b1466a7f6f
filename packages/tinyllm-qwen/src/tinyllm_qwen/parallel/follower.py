"""What the ranks do that do not lead."""

from collections.abc import Iterable

import mlx.core as mx
from tinyllm_layers import KVCache, PagedCache

from tinyllm_qwen.model import Qwen
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
    decoded,
)


class Follower:
    """Does as the leader says, with its own part of the model, caches and pages."""

    def __init__(self, model: Qwen) -> None:
        """Hold no caches yet.

        Args:
            model: this rank's part of the model.
        """
        self._model = model
        self._caches: dict[int, list[KVCache]] = {}
        self._pages: dict[int, list[PagedCache]] = {}
        self._h = mx.zeros((0,))

    def follow(self, lines: Iterable[bytes]) -> None:
        """Do as the leader says until it says no more.

        Args:
            lines: from the leader, as `Line.received` gives them.

        Raises:
            ValueError: if an order is not understood, or asks for what is not there.
            RuntimeError: if another rank is lost in the middle of a sum.
        """
        for line in lines:
            self._do(decoded(line))

    def _do(self, order: Order) -> None:
        model = self._model
        match order:
            case MakeCache(number, kv_bits, max_size):
                self._caches[number] = model.make_cache(kv_bits=kv_bits, max_size=max_size)
            case CountPages(memory_bytes, page_size, kv_bits):
                model.pages_within(memory_bytes, page_size, kv_bits=kv_bits)
            case MakePages(number, count, page_size, kv_bits):
                pages = model.make_pages(count, page_size, kv_bits=kv_bits)
                # What is more memory than there is, is so before the first request.
                mx.eval([array for layer in pages for array in layer.arrays])
                self._pages[number] = pages
            case DropCache(number):
                del (self._pages if number in self._pages else self._caches)[number]
            case CopyPages(number, pairs):
                mx.eval(self._h)  # as before a pass
                model.copy_pages(self._pages[number], [(pair[0], pair[1]) for pair in pairs])
            case Pass():
                self._pass(order)
            case PagedPass():
                self._paged_pass(order)
            case Score(last_only):
                mx.eval(model.head(self._h[:, -1:] if last_only else self._h))
            case FindBest(k):
                mx.eval(model.best(self._h[:, -1:], k).tokens)

    def _pass(self, order: Pass) -> None:
        caches = self._caches[order.cache]
        for cache in caches:
            if cache.offset != order.offset:
                cache.trim(order.offset)
        tokens = mx.array(order.tokens, dtype=mx.int32)
        self._h = self._model.hidden(tokens, caches)
        if tokens.shape[1] == 1:
            mx.async_eval(self._h)
        else:  # the next chunk's caches are written in place once this one is done
            mx.eval(self._h)

    def _paged_pass(self, order: PagedPass) -> None:
        mx.eval(self._h)  # pages are written in place once nobody reads them any more
        pages, where = self._pages[order.cache], order.where
        for layer in pages:
            layer.tokens = where
        tokens = mx.array(order.tokens, dtype=mx.int32)
        self._h = self._model.hidden(tokens, pages, rows=order.rows)
        mx.async_eval(self._h)
