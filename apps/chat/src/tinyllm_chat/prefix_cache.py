"""Keys and values that stay from one turn to the next."""

from collections.abc import Callable, Sequence
from itertools import takewhile

from tinyllm_layers import KVCache


class PrefixCache:
    """The caches of one conversation, and the tokens whose keys and values they hold."""

    def __init__(self, make: Callable[[], list[KVCache]]) -> None:
        """Start empty.

        Args:
            make: empty caches for all layers.
        """
        self._make = make
        self._caches: list[KVCache] = []
        self._tokens: list[int] = []

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens whose keys and values are there."""
        return tuple(self._tokens)

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(cache.nbytes for cache in self._caches)

    def reuse(self, prompt: Sequence[int]) -> list[KVCache]:
        """Caches that hold the longest beginning of the prompt that is there already.

        At least the prompt's last token is left to compute: its logits give the next one. Until
        `record` says what the caches hold after that, they count as lost.
        """
        pairs = zip(self._tokens, prompt[:-1], strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        caches, self._caches, self._tokens = self._caches, [], []
        if not common or not all(cache.can_trim(common) for cache in caches):
            return self._make()
        for cache in caches:
            cache.trim(common)
        return caches

    def record(self, caches: list[KVCache], tokens: Sequence[int]) -> None:
        """Keep caches for the next turn.

        Args:
            caches: from `reuse`, after the model has used them.
            tokens: what it was given, perhaps more than the caches have taken in.
        """
        self._caches = caches
        self._tokens = list(tokens[: caches[0].offset])

    def clear(self) -> None:
        """Forget everything, memory included."""
        self._caches, self._tokens = [], []
