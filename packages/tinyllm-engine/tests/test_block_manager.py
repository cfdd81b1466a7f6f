from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tinyllm_engine.kv.block_manager import BlockManager

PAGES = 7


class Holders(RuleBasedStateMachine):
    """A BlockManager beside a simple model: the pages of each text, and the page of each hash."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(PAGES, 4, max_cached=5)
        self.texts: list[list[int]] = []
        self.known: dict[bytes, int] = {}

    @property
    def held(self) -> Counter[int]:
        return Counter(page for text in self.texts for page in text)

    @rule(count=st.integers(0, 4))
    def allocate(self, count: int) -> None:
        if count > self.manager.available:
            with pytest.raises(ValueError, match="at most"):
                self.manager.allocate(count)
            return
        pages = self.manager.allocate(count)
        assert not set(pages) & set(self.held)  # no other text's
        assert len(set(pages)) == count
        self.known = {
            block_hash: page for block_hash, page in self.known.items() if page not in pages
        }
        self.texts.append(pages)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        self.manager.free(self.texts.pop(data.draw(st.integers(0, len(self.texts) - 1))))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), block_hash=st.binary(min_size=1, max_size=1))
    def register(self, data: st.DataObject, block_hash: bytes) -> None:
        page = data.draw(st.sampled_from(sorted(self.held)))
        if self.held[page] == 1 and page not in self.manager.registered().values():
            self.manager.register(page, block_hash)
            self.known.setdefault(block_hash, page)

    @rule(hashes=st.lists(st.binary(min_size=1, max_size=1), max_size=3))
    def share(self, hashes: list[bytes]) -> None:
        pages = self.manager.find(hashes)
        for block_hash, page in zip(hashes, pages, strict=False):
            assert self.known[block_hash] == page  # the page still has the registered contents
        self.manager.acquire(pages)
        self.texts.append(list(pages))

    @rule()
    def reset(self) -> None:
        self.manager.reset()
        self.texts.clear()
        self.known.clear()

    @invariant()
    def every_page_is_free_cached_or_held(self) -> None:
        assert self.manager.available == PAGES - len(self.held)
        assert self.manager.cached <= 5

    @invariant()
    def held_and_registered_pages_are_found(self) -> None:
        for block_hash, page in self.known.items():
            if page in self.held:
                assert self.manager.find([block_hash]) == [page]


Holders.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestHolders = Holders.TestCase


def test_the_least_recently_used_page_is_evicted_first_and_the_end_of_a_text_before_its_start() -> (
    None
):
    manager = BlockManager(4, 2)
    first, second = manager.allocate(2), manager.allocate(2)
    for index, page in enumerate([*first, *second]):
        manager.register(page, bytes([index]))
    manager.free(first)
    manager.free(second)
    assert manager.allocate(1) == [first[1]]
    assert manager.find([b"\0", b"\1"]) == [first[0]]
    assert manager.find([b"\2", b"\3"]) == second


def test_acquired_pages_are_not_evicted() -> None:
    manager = BlockManager(2, 2)
    pages = manager.allocate(2)
    manager.register(pages[0], b"a")
    manager.free(pages)
    manager.acquire(manager.find([b"a"]))
    assert manager.available == 1
    assert manager.allocate(1) == [pages[1]]


@pytest.mark.parametrize("numbers", [(0, 4), (4, 0)])
def test_numbers_out_of_range_are_refused(numbers: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="expected at least 1, got 0"):
        BlockManager(*numbers)


def test_one_page_of_one_token_is_the_smallest_pool() -> None:
    assert BlockManager(1, 1).allocate(1) == [0]
