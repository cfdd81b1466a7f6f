"""Which page belongs to whom. Numbers only: the keys and values are elsewhere."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence


class BlockManager:
    """Pages with reference counts, and a memory of what full pages hold.

    A page is free, held by one or more sequences, or kept: held by nobody, but full and named by
    its key, so that a later text that begins alike can take it over. Kept pages are given away
    when free ones run out, the one longest unused first.

    Attributes:
        num_pages: pages in all.
        page_size: tokens a page.
        max_kept: how many pages are kept at most.

    Raises:
        ValueError: if a number is out of its range.
    """

    def __init__(self, num_pages: int, page_size: int, max_kept: int | None = None) -> None:
        """Start with all pages free."""
        for name, number in (("num_pages", num_pages), ("page_size", page_size)):
            if number < 1:
                raise ValueError(f"{name}: expected at least 1, got {number}")
        self.num_pages = num_pages
        self.page_size = page_size
        self.max_kept = num_pages if max_kept is None else max_kept
        self._free = deque(range(num_pages))
        self._kept: OrderedDict[int, None] = OrderedDict()  # the longest unused first
        self._holders = [0] * num_pages
        self._key_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}

    @property
    def available(self) -> int:
        """Pages that can be had, kept ones included."""
        return len(self._free) + len(self._kept)

    @property
    def kept(self) -> int:
        """Pages that nobody holds and that are kept for a text that begins alike."""
        return len(self._kept)

    def pages_for(self, tokens: int) -> int:
        """How many pages so many tokens take."""
        return -(-tokens // self.page_size)

    def find(self, keys: Sequence[bytes]) -> list[int]:
        """The pages of the longest known beginning of a text, given the keys of its pages."""
        pages: list[int] = []
        for key in keys:
            page = self._page_of.get(key)
            if page is None:
                break
            pages.append(page)
        return pages

    def hold(self, pages: Sequence[int]) -> None:
        """Count one more holder of each page, kept ones among them."""
        for page in pages:
            self._kept.pop(page, None)
            self._holders[page] += 1

    def take(self, count: int) -> list[int]:
        """Hold `count` pages whose contents nobody needs.

        Raises:
            ValueError: if fewer are available: look before taking.
        """
        if count > self.available:
            raise ValueError(f"count: expected at most {self.available} pages, got {count}")
        pages = [self._free.popleft() if self._free else self._forget() for _ in range(count)]
        for page in pages:
            self._holders[page] = 1
        return pages

    def release(self, pages: Sequence[int]) -> None:
        """Count one holder less of each page of a sequence, given in the order of its text.

        The last pages go first, so that of a text which is kept the end is given away before the
        beginning: a page without those before it is of no use.
        """
        for page in reversed(pages):
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            if page in self._key_of and self.max_kept:
                self._kept[page] = None
                if len(self._kept) > self.max_kept:
                    self._free.append(self._forget())
            else:
                self._unname(page)
                self._free.append(page)

    def name(self, page: int, key: bytes) -> None:
        """Say what a full page holds. The first page of a key stays the one that is found."""
        if key not in self._page_of:
            self._page_of[key] = page
            self._key_of[page] = key

    def is_shared(self, page: int) -> bool:
        """Whether others hold the page, or may find it by its key: it must not be written then."""
        return self._holders[page] > 1 or page in self._key_of

    def named(self) -> dict[bytes, int]:
        """All pages that can be found, by key, in the order in which they would be given away."""
        held = [page for page in reversed(self._key_of) if page not in self._kept]
        return {self._key_of[page]: page for page in [*self._kept, *held]}

    def _forget(self) -> int:
        """Take the kept page that is longest unused, and its name from it."""
        page, _ = self._kept.popitem(last=False)
        self._unname(page)
        return page

    def _unname(self, page: int) -> None:
        key = self._key_of.pop(page, None)
        if key is not None:
            del self._page_of[key]
