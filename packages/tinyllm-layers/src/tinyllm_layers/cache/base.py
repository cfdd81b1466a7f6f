"""The interface of caches: they store keys and values, and attend to them."""

from __future__ import annotations

from abc import ABC, abstractmethod

import mlx.core as mx
from jaxtyping import Float
from tinyllm_ops import OpSet, Weight

from tinyllm_layers.batch import Batch


class LayerCache(ABC):
    """The keys and values of one layer.

    A cache owns their layout: dense, rotating, quantized or paged. It sees no weights.
    """

    @property
    @abstractmethod
    def arrays(self) -> list[mx.array]:
        """The stored arrays, to be evaluated at the end of a prefill chunk."""

    @property
    def nbytes(self) -> int:
        """Bytes allocated, room to grow included."""
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
        """Append k and v, and attend from each query to all tokens that it may see.

        All or nothing: after an error the cache is as before.

        Args:
            q: queries of the new tokens, rotated.
            k: keys of the new tokens, rotated.
            v: values of the new tokens.
            batch: the layout of the pass.
            scale: the factor of the scores.
            ops: the implementation of the maths.

        Raises:
            ValueError: if shapes or dtypes do not fit.
        """


class KVCache(LayerCache):
    """The keys and values of one layer, for one sequence or for rows that stay in step.

    New tokens follow the stored tokens. Some layouts can go back to a prefix.
    """

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
            k: keys.
            v: values.

        Returns:
            Keys and values in the form of the layout: `B Hkv S D`, dense or quantized. A rotating
            cache returns its slots, in no order of time once it has turned.

        Raises:
            ValueError: if shapes or dtypes differ from earlier tokens; the cache is then as before.
        """

    @abstractmethod
    def can_trim(self, length: int) -> bool:
        """Return True if the cache can go back to its first `length` tokens."""

    @abstractmethod
    def trim(self, length: int) -> None:
        """Forget all but the first `length` tokens.

        Raises:
            ValueError: if `can_trim(length)` is false.
        """

    @abstractmethod
    def fork(self) -> KVCache:
        """Return a second cache with the same tokens. The next write to either copies them once."""
