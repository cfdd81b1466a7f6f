"""Reuse of cached keys and values from one turn to the next."""

from collections.abc import Callable, Sequence
from itertools import takewhile

from tinyllm_layers import KVCache


class PrefixCache:
    """The KV caches of one conversation, and the tokens whose keys and values are cached."""

    def __init__(self, make_caches: Callable[[], list[KVCache]]) -> None:
        """Start empty.

        Args:
            make_caches: makes empty caches for all layers.
        """
        self._make_caches = make_caches
        self._caches: list[KVCache] = []
        self._tokens: list[int] = []

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens whose keys and values are cached."""
        return tuple(self._tokens)

    @property
    def nbytes(self) -> int:
        """The number of bytes allocated for the caches."""
        return sum(cache.nbytes for cache in self._caches)

    def acquire(self, prompt: Sequence[int]) -> list[KVCache]:
        """Return caches that hold the longest cached prefix of the prompt.

        The prefix never includes the prompt's last token, because the model must compute that
        token's logits. Until `store` is called, the prefix cache is empty.
        """
        pairs = zip(self._tokens, prompt[:-1], strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        caches, self._caches, self._tokens = self._caches, [], []
        if not common or not all(cache.can_trim(common) for cache in caches):
            return self._make_caches()
        for cache in caches:
            cache.trim(common)
        return caches

    def store(self, caches: list[KVCache], tokens: Sequence[int]) -> None:
        """Keep caches for the next turn.

        Args:
            caches: the caches from `acquire`, after the model has used them.
            tokens: the tokens of prompt and answer. The last token may not be cached yet.
        """
        self._caches = caches
        self._tokens = list(tokens[: caches[0].offset])

    def clear(self) -> None:
        """Release the caches and their memory."""
        self._caches, self._tokens = [], []
