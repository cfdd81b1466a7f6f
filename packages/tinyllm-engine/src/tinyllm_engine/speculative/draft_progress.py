"""A record of the tokens that a draft model has computed in each page, without tensors."""

from tinyllm_engine.request import RequestState


class DraftProgress:
    """A record of how many tokens at the start of each page the draft model has computed.

    Block hashes belong to the pages of the large model. The prefix cache therefore returns a page
    that the large model has filled, even if the draft model has not filled it. The first request
    that needs the missing tokens computes them before its next draft.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        """Make a record of empty pages."""
        self._page_size = page_size
        self._filled = [0] * num_pages

    def reset(self) -> None:
        """Record that all pages are empty."""
        self._filled = [0] * len(self._filled)

    def computed(self, request: RequestState) -> int:
        """Return how many tokens of a request the draft model has computed before the first gap.

        The result is at most `request.num_computed_tokens`.
        """
        size = self._page_size
        for index in range(-(-request.num_computed_tokens // size)):
            filled = self._filled[request.block_table[index]]
            if filled < size:
                return min(index * size + filled, request.num_computed_tokens)
        return request.num_computed_tokens

    def extend(self, request: RequestState, start: int, stop: int) -> None:
        """Record that the draft model has computed tokens `start` to `stop`."""
        for at in range(start, stop):
            index, offset = divmod(at, self._page_size)
            self._filled[request.block_table[index]] = offset + 1

    def cut(self, request: RequestState, start: int, stop: int) -> None:
        """Record that the draft model has no valid tokens at positions `start` to `stop`.

        The draft model has not computed these positions, or it has computed rejected draft tokens.
        """
        for at in range(start, stop):
            index, offset = divmod(at, self._page_size)
            page = request.block_table[index]
            self._filled[page] = min(self._filled[page], offset)

    def copy(self, source: int, target: int) -> None:
        """Record that a page was copied."""
        self._filled[target] = self._filled[source]
