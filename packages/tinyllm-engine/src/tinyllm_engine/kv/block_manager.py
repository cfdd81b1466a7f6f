"""Allocation and sharing of pages. Numbers only: the keys and values are elsewhere."""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Sequence
from hashlib import blake2b

HASH_BYTES = 16
"""The length of a block hash."""

_ROOT = b""
"""The hash before the first page."""


def block_hashes(tokens: Sequence[int], page_size: int, known: Sequence[bytes] = ()) -> list[bytes]:
    """Return the block hashes of all full pages of a text.

    A block hash covers the page's tokens and the block hash before it, so that it stands for the
    whole text up to the page's end. It is a cryptographic hash because the tokens are not compared:
    two texts with the same hash would read each other's conversation.

    Args:
        tokens: the text.
        page_size: tokens a page.
        known: block hashes of the first pages, computed earlier.
    """
    hashes = list(known)
    for start in range(len(hashes) * page_size, len(tokens) - page_size + 1, page_size):
        page = array("I", tokens[start : start + page_size])
        before = hashes[-1] if hashes else _ROOT
        hashes.append(blake2b(before + page.tobytes(), digest_size=HASH_BYTES).digest())
    return hashes


class BlockManager:
    """Pages with reference counts, and a prefix cache of full pages by block hash.

    A page is free, held by one or more requests, or cached: held by no request, but full and
    registered under its block hash, so that a later request with the same prefix can acquire it.
    Cached pages are evicted when free ones run out, least recently used first.

    Attributes:
        num_pages: pages in all.
        page_size: tokens a page.
        max_cached: the most pages that are cached.

    Raises:
        ValueError: if a number is out of its range.
    """

    def __init__(self, num_pages: int, page_size: int, max_cached: int | None = None) -> None:
        """Start with all pages free."""
        for name, number in (("num_pages", num_pages), ("page_size", page_size)):
            if number < 1:
                raise ValueError(f"{name}: expected at least 1, got {number}")
        self.num_pages = num_pages
        self.page_size = page_size
        self.max_cached = num_pages if max_cached is None else max_cached
        self.reset()

    def reset(self) -> None:
        """Free all pages, and forget the block hashes: the contents are lost."""
        self._free = deque(range(self.num_pages))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._holders = [0] * self.num_pages
        self._hash_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}

    @property
    def available(self) -> int:
        """The number of pages that can be allocated, cached ones included."""
        return len(self._free) + len(self._cached)

    @property
    def cached(self) -> int:
        """The number of pages that only the prefix cache holds."""
        return len(self._cached)

    def pages_for(self, tokens: int) -> int:
        """Return the number of pages that hold `tokens` tokens."""
        return -(-tokens // self.page_size)

    def find(self, hashes: Sequence[bytes]) -> list[int]:
        """Return the pages of the longest known prefix of a text, given its block hashes."""
        pages: list[int] = []
        for block_hash in hashes:
            page = self._page_of.get(block_hash)
            if page is None:
                break
            pages.append(page)
        return pages

    def acquire(self, pages: Sequence[int]) -> None:
        """Count one more holder of each page, cached ones included."""
        for page in pages:
            self._cached.pop(page, None)
            self._holders[page] += 1

    def allocate(self, count: int) -> list[int]:
        """Acquire `count` pages whose contents are not needed.

        Raises:
            ValueError: if fewer are available.
        """
        if count > self.available:
            raise ValueError(
                f"count: expected at most {self.available} pages, got {count}: compare with "
                "`available` first"
            )
        pages = [self._free.popleft() if self._free else self._evict() for _ in range(count)]
        for page in pages:
            self._holders[page] = 1
        return pages

    def free(self, pages: Sequence[int]) -> None:
        """Count one holder less of each page of a request, given in the order of its text.

        The last pages are freed first, so that the end of a cached text is evicted before its
        prefix: a page without the pages before it is of no use.
        """
        for page in reversed(pages):
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            if page in self._hash_of and self.max_cached:
                self._cached[page] = None
                if len(self._cached) > self.max_cached:
                    self._free.append(self._evict())
            else:
                self._unregister(page)
                self._free.append(page)

    def register(self, page: int, block_hash: bytes) -> None:
        """Register a full page under its block hash. The first page of a hash stays registered."""
        if block_hash not in self._page_of:
            self._page_of[block_hash] = page
            self._hash_of[page] = block_hash

    def is_shared(self, page: int) -> bool:
        """Return True if the page has other holders or a block hash: it must not be written."""
        return self._holders[page] > 1 or page in self._hash_of

    def registered(self) -> dict[bytes, int]:
        """Return all registered pages by block hash, in the order in which they are evicted."""
        held = [page for page in reversed(self._hash_of) if page not in self._cached]
        return {self._hash_of[page]: page for page in [*self._cached, *held]}

    def _evict(self) -> int:
        """Remove the least recently used page from the prefix cache."""
        page, _ = self._cached.popitem(last=False)
        self._unregister(page)
        return page

    def _unregister(self, page: int) -> None:
        block_hash = self._hash_of.pop(page, None)
        if block_hash is not None:
            del self._page_of[block_hash]
