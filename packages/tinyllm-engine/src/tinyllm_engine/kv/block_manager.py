"""Allocation and sharing of pages by number. The keys and values are in `PagePool`."""

from array import array
from collections import OrderedDict, deque
from collections.abc import Sequence
from hashlib import blake2b

HASH_BYTES = 16
"""The length of a block hash, in bytes."""


def block_hashes(
    tokens: Sequence[int], page_size: int, known: Sequence[bytes] = (), *, salt: str = ""
) -> list[bytes]:
    """Return the block hashes of all full pages of a text.

    The block hash of a page covers the tokens of the page and the block hash of the page before. It
    therefore stands for the whole text up to the end of the page. The hash is cryptographic,
    because tokens are not compared: two conversations with equal hashes would share pages.

    Args:
        tokens: the token ids of the text.
        page_size: number of tokens in a page.
        known: block hashes of the first pages, computed earlier with the same salt.
        salt: text that stands before the first page. Texts with different salts share no hashes.
    """
    # The first page has no page before. The hash of the salt has a fixed length and is not the one
    # of a page, so that no salt can imitate the tokens of a page.
    text = salt.encode(errors="surrogatepass")
    root = blake2b(text, digest_size=HASH_BYTES, person=b"salt").digest() if salt else b""
    hashes = list(known)
    for start in range(len(hashes) * page_size, len(tokens) - page_size + 1, page_size):
        page = array("I", tokens[start : start + page_size])
        before = hashes[-1] if hashes else root
        hashes.append(blake2b(before + page.tobytes(), digest_size=HASH_BYTES).digest())
    return hashes


class BlockManager:
    """Pages with reference counts, and a prefix cache of full pages by block hash.

    A page is what vLLM calls a block: the keys and values of `page_size` tokens in all layers.
    A page is free, held by one or more requests, or cached. A cached page has no holder. It is full
    and registered under its block hash, so that a later request with the same prefix can acquire
    the page. If no page is free, cached pages are evicted, least recently used first.

    Attributes:
        num_pages: the number of all pages.
        page_size: number of tokens in a page.
        max_cached: the largest number of cached pages.

    Raises:
        ValueError: if a number is out of its range.
    """

    def __init__(self, num_pages: int, page_size: int, max_cached: int | None = None) -> None:
        """Make a manager of free pages. Without `max_cached`, all pages may be cached."""
        for name, number in (("num_pages", num_pages), ("page_size", page_size)):
            if number < 1:
                raise ValueError(f"{name}: expected at least 1, got {number}")
        self.num_pages = num_pages
        self.page_size = page_size
        self.max_cached = num_pages if max_cached is None else max_cached
        self.reset()

    def reset(self) -> None:
        """Free all pages and drop all block hashes, because the contents of pages are lost."""
        self._free = deque(range(self.num_pages))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._holders = [0] * self.num_pages
        self._hash_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}

    @property
    def available(self) -> int:
        """The number of pages that can be allocated, cached pages included."""
        return len(self._free) + len(self._cached)

    @property
    def cached(self) -> int:
        """The number of pages that only the prefix cache holds."""
        return len(self._cached)

    def pages_for(self, tokens: int) -> int:
        """Return the number of pages needed for `tokens` tokens."""
        return -(-tokens // self.page_size)

    def find(self, hashes: Sequence[bytes]) -> list[int]:
        """Return the registered pages of the longest prefix of a text with these block hashes."""
        pages: list[int] = []
        for block_hash in hashes:
            page = self._page_of.get(block_hash)
            if page is None:
                break
            pages.append(page)
        return pages

    def acquire(self, pages: Sequence[int]) -> None:
        """Add one holder to each page. A cached page is then no longer cached."""
        for page in pages:
            self._cached.pop(page, None)
            self._holders[page] += 1

    def allocate(self, count: int) -> list[int]:
        """Return `count` pages with one holder each. Their contents are undefined.

        Raises:
            ValueError: if fewer pages are available.
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
        """Remove one holder from each page.

        Args:
            pages: pages of one request, in the order of its text. The last page is freed first, so
                that the end of a cached text is evicted before its prefix. A page is of no use once
                the page before it is evicted.
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
        """Register a full page under its block hash, unless the hash already has a page."""
        if block_hash not in self._page_of:
            self._page_of[block_hash] = page
            self._hash_of[page] = block_hash

    def holders(self, page: int) -> int:
        """Return the number of holders of a page."""
        return self._holders[page]

    def registered(self) -> dict[bytes, int]:
        """Return all registered pages by block hash; the pages to evict first come first."""
        # A text is registered from its start on, and evicted from its end.
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
