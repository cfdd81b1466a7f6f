"""Snapshots of recurrent state by block hash, without tensors. The states are in `PagePool`."""

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence


class SnapshotStore:
    """Slots of the state pool that keep the states after prefixes, for later requests.

    Recurrent layers have no keys and values of single tokens, but one state of fixed size. A
    request can therefore reuse a prefix only up to a length at which the state was saved. The
    snapshot of a prefix is found by the block hash of the last page of the prefix.

    A slot is free, pending, or registered. A pass writes the state to a pending slot, and `publish`
    registers the slot afterwards. A registered snapshot is never written again. If no slot is free,
    the least recently used snapshot without holders is evicted.

    Attributes:
        slots: the numbers of the slots for snapshots.
        hits: the number of times that a request loaded a snapshot.
        evictions: the number of snapshots that were evicted.
    """

    def __init__(self, slots: range) -> None:
        """Make a store without snapshots."""
        self.slots = slots
        self.hits = 0
        self.evictions = 0
        self.reset()

    def reset(self) -> None:
        """Drop all snapshots, because the contents of the slots are lost."""
        self._free = deque(self.slots)
        self._slot_of: dict[bytes, int] = {}
        self._pending: dict[bytes, int] = {}
        self._holders: Counter[int] = Counter()
        self._unheld: OrderedDict[bytes, None] = OrderedDict()  # least recently used first

    @property
    def registered(self) -> dict[bytes, int]:
        """All snapshots by block hash; the snapshots to evict first come first."""
        held = [each for each in self._slot_of if each not in self._unheld]
        return {each: self._slot_of[each] for each in [*self._unheld, *held]}

    @property
    def count(self) -> int:
        """The number of snapshots."""
        return len(self._slot_of)

    @property
    def held(self) -> int:
        """The number of slots that requests hold, pending slots included."""
        return len(self.slots) - len(self._free) - len(self._unheld)

    def longest(self, hashes: Sequence[bytes]) -> int:
        """Return the number of pages of the longest prefix that ends at a snapshot; 0 for none.

        Args:
            hashes: the block hashes of the first pages of a text.
        """
        known = self._slot_of
        return next((n for n in range(len(hashes), 0, -1) if hashes[n - 1] in known), 0)

    def acquire(self, block_hash: bytes) -> int:
        """Add a holder to a snapshot, which is then not evicted; return its slot."""
        self.hits += 1
        slot = self._slot_of[block_hash]
        self._unheld.pop(block_hash, None)
        self._holders[slot] += 1
        return slot

    def begin(self, block_hash: bytes) -> int | None:
        """Return a slot to which the next pass saves a state, with one holder.

        Returns:
            None if the snapshot exists or is pending, or if every slot is in use.
        """
        if block_hash in self._slot_of or block_hash in self._pending:
            if block_hash in self._unheld:
                self._unheld.move_to_end(block_hash)
            return None
        if not self._free:
            if not self._unheld:
                return None
            oldest, _ = self._unheld.popitem(last=False)
            self._free.append(self._slot_of.pop(oldest))
            self.evictions += 1
        slot = self._free.popleft()
        self._pending[block_hash] = slot
        self._holders[slot] = 1
        return slot

    def publish(self, block_hash: bytes) -> None:
        """Register a snapshot if it is pending, after the pass that saved it."""
        if block_hash in self._pending:
            self._slot_of[block_hash] = self._pending.pop(block_hash)

    def restore(self, block_hash: bytes) -> int:
        """Register a new snapshot without holders, for a state from a file; return its slot.

        The caller restores at most as many snapshots as there are slots.
        """
        slot = self.begin(block_hash)
        assert slot is not None, "an unknown snapshot, and a free slot"
        self.publish(block_hash)
        self.release(block_hash)
        return slot

    def release(self, block_hash: bytes) -> None:
        """Remove a holder of a snapshot. A pending slot is freed: no pass has saved its state."""
        pending = self._pending.pop(block_hash, None)
        if pending is not None:
            del self._holders[pending]
            self._free.append(pending)
            return
        slot = self._slot_of[block_hash]
        self._holders[slot] -= 1
        if not self._holders[slot]:
            del self._holders[slot]
            self._unheld[block_hash] = None
