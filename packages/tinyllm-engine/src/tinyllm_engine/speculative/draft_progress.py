"""The tokens that a draft model has computed in each page. No tensors."""

from __future__ import annotations

from tinyllm_engine.request import RequestState


class DraftProgress:
    """For each page, the number of its first tokens that the draft model has computed too.

    The pages are the model's, and so are their block hashes: a page is found again when the model
    has filled it, even if the draft model has not. Missing tokens are computed before the next
    draft, by the first request that needs them.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        """Start with empty pages."""
        self._page_size = page_size
        self._filled = [0] * num_pages

    def reset(self) -> None:
        """Forget all pages."""
        self._filled = [0] * len(self._filled)

    def computed(self, request: RequestState) -> int:
        """Return the number of a request's computed tokens that the draft model has, gapless."""
        size = self._page_size
        for index in range(-(-request.computed // size)):
            filled = self._filled[request.pages[index]]
            if filled < size:
                return min(index * size + filled, request.computed)
        return request.computed

    def extend(self, request: RequestState, start: int, stop: int) -> None:
        """Record that the draft model has computed tokens `start` to `stop`."""
        for at in range(start, stop):
            index, offset = divmod(at, self._page_size)
            self._filled[request.pages[index]] = offset + 1

    def cut(self, request: RequestState, start: int, stop: int) -> None:
        """Record that the draft model has not computed tokens `start` to `stop`, or other ones."""
        for at in range(start, stop):
            index, offset = divmod(at, self._page_size)
            page = request.pages[index]
            self._filled[page] = min(self._filled[page], offset)

    def copy(self, source: int, target: int) -> None:
        """Record that a page was copied."""
        self._filled[target] = self._filled[source]
