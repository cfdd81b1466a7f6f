"""The cache of one sequence."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from tinyllm_ops import Positions

from tinyllm_layers.layer_cache import LayerCache


@runtime_checkable
class KVCache(LayerCache, Protocol):
    """The keys and values of one layer, for the tokens that one sequence has seen.

    New tokens come after those seen, and a prefix can be gone back to.
    """

    @property
    def offset(self) -> int:
        """Tokens seen so far: the position of the next one."""
        ...

    def positions(self, length: int) -> Positions:
        """Where the next `length` tokens stand: after those seen, unless a cache knows better."""
        return slice(self.offset, self.offset + length)

    def can_trim(self, length: int) -> bool:
        """Whether the cache can go back to its first `length` tokens."""
        ...

    def trim(self, length: int) -> None:
        """Forget all but the first `length` tokens.

        Raises:
            ValueError: if `can_trim(length)` is false.
        """
        ...
