"""The interface of caches, which store keys and values and compute attention over them."""

from __future__ import annotations

from abc import ABC, abstractmethod

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import OpSet, Weight

from tinyllm_layers.batch import Batch


class LayerCache(ABC):
    """The keys and values of one layer.

    Each subclass has its own layout of keys and values: dense, rotating, quantized or paged. A
    cache sees no weights.
    """

    __slots__ = ("__weakref__",)

    @property
    @abstractmethod
    def arrays(self) -> list[mx.array]:
        """The stored arrays, to be evaluated at the end of a prefill chunk."""

    @property
    def nbytes(self) -> int:
        """Bytes of the allocated arrays, unused capacity included."""
        return sum(array.nbytes for array in self.arrays)

    @abstractmethod
    def attend(
        self,
        q: Float[mx.array, "B H L D"],
        k: Float[mx.array, "B Hkv L D"],
        v: Float[mx.array, "B Hkv L D"],
        batch: Batch,
        scale: float,
        ops: OpSet,
    ) -> Float[mx.array, "B H L D"]:
        """Append k and v, and compute attention of each query over all tokens that it may see.

        If the call raises an error, the cache is unchanged.

        Args:
            q: queries of the new tokens, rotated.
            k: keys of the new tokens, rotated.
            v: values of the new tokens.
            batch: the layout of the pass.
            scale: the factor of the scores, 1/sqrt(D).
            ops: the implementation of the maths.

        Returns:
            The attention output of each head, before the output projection.

        Raises:
            ValueError: if shapes or dtypes do not fit each other, the batch or the stored keys.
        """


class KVCache(LayerCache):
    """The keys and values of one layer for B sequences that always have equal lengths.

    New tokens follow the stored tokens. Some layouts can be trimmed to a prefix.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def offset(self) -> int:
        """The number of tokens seen so far, which is the position of the next token."""

    @abstractmethod
    def update(
        self, k: Float[mx.array, "B Hkv L D"], v: Float[mx.array, "B Hkv L D"]
    ) -> tuple[Weight, Weight]:
        """Append keys and values of L tokens, and return all stored keys and values.

        Args:
            k: new keys.
            v: new values.

        Returns:
            Keys and values `B Hkv S D`, dense or quantized. A rotating cache returns its slots,
            which are not in the order of positions once it has overwritten a token.

        Raises:
            ValueError: if shapes or dtypes differ from the stored tokens. The cache is then
                unchanged.
        """

    @abstractmethod
    def can_trim(self, length: int) -> bool:
        """Return True if the cache can be trimmed to its first `length` tokens."""

    @abstractmethod
    def trim(self, length: int) -> None:
        """Remove all but the first `length` tokens.

        Raises:
            ValueError: if `can_trim(length)` is false.
        """

    @abstractmethod
    def fork(self) -> KVCache:
        """Return a second cache with the same tokens.

        Both caches share their arrays until the next write to one of them copies the arrays.
        """
