"""Snapshots are found by block hash, evicted by last use, and never evicted while held."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tinyllm_engine.kv.snapshot_store import SnapshotStore

A, B, C, D = (bytes([number]) * 16 for number in range(4))


def saved(store: SnapshotStore, *hashes: bytes) -> None:
    for block_hash in hashes:
        assert store.begin(block_hash) is not None
        store.publish(block_hash)
        store.release(block_hash)


def test_the_longest_prefix_with_a_snapshot_is_found() -> None:
    store = SnapshotStore(range(4))
    assert store.longest([A, B, C]) == 0
    saved(store, A, C)
    assert [store.longest([A, B, C][:n]) for n in range(4)] == [0, 1, 1, 3]
    assert store.longest([D]) == 0


def test_the_least_recently_used_snapshot_is_evicted() -> None:
    store = SnapshotStore(range(7, 9))
    saved(store, A, B)
    store.acquire(A)
    store.release(A)  # now B is the least recently used
    saved(store, C)
    assert list(store.registered) == [A, C]
    assert store.begin(A) is None  # the snapshot exists: this use makes it the most recent
    saved(store, D)
    assert list(store.registered) == [A, D]
    assert sorted(store.registered.values()) == [7, 8]
    assert (store.hits, store.evictions, store.count, store.held) == (1, 2, 2, 0)


def test_a_held_or_pending_snapshot_is_not_evicted() -> None:
    store = SnapshotStore(range(2))
    saved(store, A)
    slot = store.acquire(A)
    pending = store.begin(B)
    assert {slot, pending} == {0, 1}
    assert store.begin(B) is None  # another request saves it in the same pass
    assert store.begin(C) is None  # no slot is left
    assert store.longest([B]) == 0  # not before the pass
    store.publish(B)
    assert store.longest([B]) == 1
    assert store.begin(C) is None
    store.release(A)
    assert store.begin(C) == slot
    assert store.evictions == 1


def test_a_store_without_slots_saves_nothing() -> None:
    store = SnapshotStore(range(3, 3))
    assert store.begin(A) is None
    assert store.longest([A]) == store.count == store.held == 0


class Stores(RuleBasedStateMachine):
    """Saves, holds and cancels in any order, with the holders counted by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.store = SnapshotStore(range(10, 13))
        self.holders: list[bytes] = []
        self.pending: list[bytes] = []

    @rule(number=st.integers(0, 6))
    def begin(self, number: int) -> None:
        block_hash = bytes([number])
        before = self.store.registered
        slot = self.store.begin(block_hash)
        known = block_hash in before or block_hash in self.pending
        full = len({*self.holders, *self.pending}) == 3
        assert (slot is None) == (known or full)
        if slot is not None:
            self.pending.append(block_hash)
            assert all(before[held] != slot for held in self.holders)

    @precondition(lambda self: self.pending)
    @rule(fails=st.booleans())
    def end(self, fails: bool) -> None:
        block_hash = self.pending.pop(0)
        if fails:
            self.store.release(block_hash)
        else:
            self.store.publish(block_hash)
            self.holders.append(block_hash)

    @rule(number=st.integers(0, 6))
    def acquire(self, number: int) -> None:
        if self.store.longest([bytes([number])]):
            self.store.acquire(bytes([number]))
            self.holders.append(bytes([number]))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.holders) - 1))
        self.store.release(self.holders.pop(index))

    @invariant()
    def slots_are_counted(self) -> None:
        assert self.store.held == len({*self.holders, *self.pending})
        slots = list(self.store.registered.values())
        assert len(set(slots)) == len(slots) == self.store.count <= 3
        assert set(self.holders) <= set(self.store.registered)


Stores.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestStores = Stores.TestCase
