"""Reuse of caches from one turn to the next."""

from collections.abc import Callable, Sequence
from itertools import takewhile

from tinyllm_layers import SequenceCache
from tinyllm_qwen.caches import common_prefix


class PrefixCache:
    """The caches of one conversation, and the tokens that they hold."""

    def __init__(self, make_caches: Callable[[], list[SequenceCache]]) -> None:
        """Start empty.

        Args:
            make_caches: makes empty caches for all layers.
        """
        self._make_caches = make_caches
        self._caches: list[SequenceCache] = []
        self._tokens: list[int] = []

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens that the caches hold."""
        return tuple(self._tokens)

    @property
    def nbytes(self) -> int:
        """The number of bytes allocated for the caches."""
        return sum(cache.nbytes for cache in self._caches)

    def acquire(self, prompt: Sequence[int]) -> list[SequenceCache]:
        """Return caches that hold the longest cached prefix of the prompt.

        Recurrent layers keep the states after a few prefixes alone, and some caches cannot be
        trimmed. The prefix is then shorter than the tokens that are equal, or empty. It never
        includes the prompt's last token, because the model must compute that token's logits. Until
        `store` is called, the prefix cache is empty.
        """
        pairs = zip(self._tokens, prompt[:-1], strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        caches, self._caches, self._tokens = self._caches, [], []
        common = common_prefix(caches, common) if caches else 0
        if not common:
            return self._make_caches()
        for cache in caches:
            cache.trim(common)
        return caches

    def store(self, caches: list[SequenceCache], tokens: Sequence[int]) -> None:
        """Keep caches for the next turn.

        Args:
            caches: the caches from `acquire`, after the model has used them.
            tokens: the tokens of prompt and answer. The last token may not be cached yet.
        """
        self._caches = caches
        self._tokens = list(tokens[: caches[0].offset])
