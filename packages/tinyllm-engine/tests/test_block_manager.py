from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tinyllm_engine.kv.block_manager import BlockManager

PAGES = 7


class Holders(RuleBasedStateMachine):
    """Texts that hold pages, against a count of who holds what, kept by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(PAGES, 4, max_kept=5)
        self.texts: list[list[int]] = []
        self.known: dict[bytes, int] = {}

    @property
    def held(self) -> Counter[int]:
        return Counter(page for text in self.texts for page in text)

    @rule(count=st.integers(0, 4))
    def take(self, count: int) -> None:
        if count > self.manager.available:
            with pytest.raises(ValueError, match="at most"):
                self.manager.take(count)
            return
        pages = self.manager.take(count)
        assert not set(pages) & set(self.held)  # nobody else's
        assert len(set(pages)) == count
        self.known = {key: page for key, page in self.known.items() if page not in pages}
        self.texts.append(pages)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.manager.release(self.texts.pop(data.draw(st.integers(0, len(self.texts) - 1))))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), key=st.binary(min_size=1, max_size=1))
    def name(self, data: st.DataObject, key: bytes) -> None:
        page = data.draw(st.sampled_from(sorted(self.held)))
        if not self.manager.is_shared(page):
            self.manager.name(page, key)
            self.known.setdefault(key, page)

    @rule(keys=st.lists(st.binary(min_size=1, max_size=1), max_size=3))
    def share(self, keys: list[bytes]) -> None:
        pages = self.manager.find(keys)
        for key, page in zip(keys, pages, strict=False):
            assert self.known[key] == page  # what it says is what was put there
        self.manager.hold(pages)
        self.texts.append(list(pages))

    @invariant()
    def every_page_is_in_one_place(self) -> None:
        assert self.manager.available == PAGES - len(self.held)
        assert self.manager.kept <= 5

    @invariant()
    def what_is_held_and_named_is_found(self) -> None:
        for key, page in self.known.items():
            if page in self.held:
                assert self.manager.find([key]) == [page]


Holders.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestHolders = Holders.TestCase


def test_the_page_longest_unused_is_given_away_first_and_of_a_text_its_end() -> None:
    manager = BlockManager(4, 2)
    first, second = manager.take(2), manager.take(2)
    for index, page in enumerate([*first, *second]):
        manager.name(page, bytes([index]))
    manager.release(first)
    manager.release(second)
    assert manager.take(1) == [first[1]]
    assert manager.find([b"\0", b"\1"]) == [first[0]]
    assert manager.find([b"\2", b"\3"]) == second


def test_what_was_found_and_is_held_again_is_not_given_away() -> None:
    manager = BlockManager(2, 2)
    pages = manager.take(2)
    manager.name(pages[0], b"a")
    manager.release(pages)
    manager.hold(manager.find([b"a"]))
    assert manager.available == 1
    assert manager.take(1) == [pages[1]]


@pytest.mark.parametrize("numbers", [(0, 4), (4, 0)])
def test_numbers_out_of_range_are_refused(numbers: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="expected at least 1, got 0"):
        BlockManager(*numbers)
