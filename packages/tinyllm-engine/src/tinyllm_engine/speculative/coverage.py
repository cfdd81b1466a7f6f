"""How far the pages of a draft model are filled."""

from __future__ import annotations

from tinyllm_engine.sequence import Sequence


class Coverage:
    """Of each page, how many of its first tokens the draft model has computed too. No tensors.

    The pages are the model's, and so are their names: a page is found again by its key when the
    model has filled it, whether the draft model has or not. What is missing there is computed
    before the next guess, by whoever guesses first.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        """Start with empty pages."""
        self._page_size = page_size
        self._filled = [0] * num_pages

    def reach(self, sequence: Sequence) -> int:
        """How many of a sequence's computed tokens the draft model has without a gap."""
        size = self._page_size
        for index in range(-(-sequence.computed // size)):
            filled = self._filled[sequence.pages[index]]
            if filled < size:
                return min(index * size + filled, sequence.computed)
        return sequence.computed

    def extend(self, sequence: Sequence, start: int, stop: int) -> None:
        """The draft model has computed tokens `start` to `stop` as well."""
        for at in range(start, stop):
            page, place = divmod(at, self._page_size)
            self._filled[sequence.pages[page]] = place + 1

    def cut(self, sequence: Sequence, start: int, stop: int) -> None:
        """The draft model has not computed tokens `start` to `stop`, or they were others."""
        for at in range(start, stop):
            page, place = divmod(at, self._page_size)
            number = sequence.pages[page]
            self._filled[number] = min(self._filled[number], place)

    def copy(self, source: int, target: int) -> None:
        """A page was copied."""
        self._filled[target] = self._filled[source]
