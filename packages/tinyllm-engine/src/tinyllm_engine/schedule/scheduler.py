"""What is computed next, and for whom. No tensors."""

from __future__ import annotations

from bisect import insort

from tinyllm_engine.kv.block_manager import BlockManager
from tinyllm_engine.schedule.step import Chunk, Plan
from tinyllm_engine.sequence import Sequence

PATIENCE = 64
"""Later requests that may overtake one because each is one level of priority ahead of it."""

DECODED_AGAIN = 64
"""Tokens that a sequence decodes again at most in a step, after it lost its pages."""


class Scheduler:
    """Admits sequences when there is memory for them, and cuts the work of a step to size.

    Every step decodes a token of each sequence that has got so far, and prefills a limited number
    of tokens of prompts: a long prompt never stalls those that decode. Half of that number goes to
    the oldest prompt, the rest to the shortest ones: a short prompt does not wait for a long one,
    and no stream of short ones starves a long one.

    Sequences are ranked by arrival; a level of priority counts as `PATIENCE` arrivals. Who is first
    in rank is admitted first, and when pages run out the last in rank gives its own back and waits
    again, with all tokens that it has got. Since a rank never changes, everybody's turn comes.

    Attributes:
        pages: whose page is which.
        max_running: sequences that hold pages at a time.
        prefix_cache: whether sequences share the pages of what they begin with.
        preemptions: how often pages were taken back.
    """

    def __init__(self, pages: BlockManager, max_running: int, *, prefix_cache: bool = True) -> None:
        """Start with nothing to do."""
        self.pages = pages
        self.max_running = max_running
        self.prefix_cache = prefix_cache
        self.preemptions = 0
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []

    @property
    def waiting(self) -> int:
        """Sequences without pages."""
        return len(self._waiting)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Sequences with pages, the first in rank first."""
        return tuple(self._running)

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for its turn."""
        insort(self._waiting, sequence, key=_rank)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, finished or not; its pages are given back."""
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        elif sequence in self._running:
            self._running.remove(sequence)
            self._release(sequence)

    def plan(self, prefill_tokens: int) -> Plan:
        """Decide on a step that prefills at most so many tokens."""
        copies = self._admit()
        decode = self._decode()
        prefill = self._prefill(prefill_tokens)
        # Who ends a prompt in this step chooses a token in this step: it has the pages already.
        ended = (chunk.sequence for chunk in prefill if chunk.stop == chunk.sequence.prefill_end)
        decode += [_decoded(sequence, sequence.prefill_end) for sequence in ended]
        return Plan(prefill, decode, copies)

    def advance(self, sequence: Sequence, computed: int) -> None:
        """Take note that the first `computed` tokens of a sequence are in its pages."""
        page_size = self.pages.page_size
        if self.prefix_cache:
            full = range(sequence.computed // page_size, computed // page_size)
            keys = sequence.keys(page_size) if full else []
            for index in full:
                self.pages.name(sequence.pages[index], keys[index])
        sequence.computed = computed

    def room(self, sequence: Sequence, length: int) -> bool:
        """Get a sequence the pages for so many tokens, if there are enough."""
        needed = max(0, self.pages.pages_for(length) - len(sequence.pages))
        if needed > self.pages.available:
            return False
        sequence.pages += self.pages.take(needed)
        return True

    def _admit(self) -> list[tuple[int, int]]:
        """Give pages to those who wait, in rank; the pages that must be copied for it."""
        copies: list[tuple[int, int]] = []
        coming = self._coming() if self._waiting else set()
        for sequence in tuple(self._waiting):
            if len(self._running) >= self.max_running:
                break
            keys = sequence.keys(self.pages.page_size) if self.prefix_cache else []
            found = self.pages.find(keys)
            if len(found) < len(keys) and keys[len(found)] in coming:
                continue  # somebody is computing what comes next: wait for it and share it
            if not self._give(sequence, found, copies):
                break
            self._waiting.remove(sequence)
            insort(self._running, sequence, key=_rank)
            coming.update(keys[len(found) :])
        return copies

    def _coming(self) -> set[bytes]:
        """The keys of the pages of prompts that are being prefilled."""
        if not self.prefix_cache:
            return set()
        size = self.pages.page_size
        prefilling = (sequence for sequence in self._running if sequence.is_prefilling)
        return {key for s in prefilling for key in s.keys(size)[s.computed // size :]}

    def _give(self, sequence: Sequence, found: list[int], copies: list[tuple[int, int]]) -> bool:
        """Let a sequence share the pages found, and take the others; false if there are too few."""
        pages, length = self.pages, len(sequence.tokens)
        pages.hold(found)
        # The last token goes through the model in any case, to choose the next. Where its page is
        # known too, it is written into a copy: others read the original.
        copied = found.pop() if len(found) * pages.page_size == length else None
        needed = pages.pages_for(length) - len(found)
        reserve = len(self._running)  # each of them may need one more soon
        if needed + reserve > pages.available:
            pages.release(found if copied is None else [*found, copied])
            return False
        taken = pages.take(needed)
        sequence.computed = len(found) * pages.page_size
        if copied is not None:
            copies.append((copied, taken[0]))
            pages.release([copied])
            sequence.computed = length - 1
        sequence.pages = found + taken
        if sequence.cached is None:
            sequence.cached = sequence.computed
        return True

    def _decode(self) -> list[Chunk]:
        """A chunk for each sequence that decodes, once it has the pages for it."""
        chunks: list[Chunk] = []
        for sequence in tuple(self._running):
            if sequence not in self._running or sequence.is_prefilling:
                continue
            chunk = _decoded(sequence, sequence.computed)
            if not self.room(sequence, chunk.stop):
                sequence.draft.clear()
                chunk = _decoded(sequence, sequence.computed)
                while not self.room(sequence, chunk.stop):
                    self._preempt(self._running[-1])
                    if not sequence.pages:
                        break
            if sequence.pages:
                chunks.append(chunk)
        return chunks

    def _prefill(self, budget: int) -> list[Chunk]:
        """Share out the tokens that may be prefilled."""
        prefilling = [sequence for sequence in self._running if sequence.is_prefilling]
        if not prefilling:
            return []
        oldest, *others = prefilling
        others.sort(key=_left)
        shares = {oldest: min(_left(oldest), budget - budget // 2 if others else budget)}
        budget -= shares[oldest]
        for sequence in others:
            shares[sequence] = min(_left(sequence), budget)
            budget -= shares[sequence]
        shares[oldest] += min(_left(oldest) - shares[oldest], budget)
        return [
            Chunk(sequence, sequence.computed, sequence.computed + share)
            for sequence, share in shares.items()
            if share
        ]

    def _preempt(self, sequence: Sequence) -> None:
        """Take the pages of a sequence back, and let it wait for its turn again."""
        self.preemptions += 1
        self._running.remove(sequence)
        self._release(sequence)
        insort(self._waiting, sequence, key=_rank)

    def _release(self, sequence: Sequence) -> None:
        self.pages.release(sequence.pages)
        sequence.pages = []
        sequence.computed = 0
        sequence.draft.clear()


def _rank(sequence: Sequence) -> int:
    """The order of turns."""
    return sequence.arrival + PATIENCE * sequence.request.priority


def _left(sequence: Sequence) -> int:
    """Tokens still to be prefilled."""
    return sequence.prefill_end - sequence.computed


def _decoded(sequence: Sequence, start: int) -> Chunk:
    """What a sequence decodes next, from a token on."""
    end = len(sequence.tokens) + len(sequence.draft)
    return Chunk(sequence, start, min(end, start + max(DECODED_AGAIN, 1 + len(sequence.draft))))
