"""The interfaces of caches, which keep the earlier tokens of a text for a layer."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
from jaxtyping import Float, Float32
from tinyllm_ops import OpSet, Phase, StateTable, Weight

from tinyllm_layers.batch import Batch
from tinyllm_layers.cache.loan import Loan

Zeros = Callable[[tuple[int, ...], mx.Dtype], mx.array]
"""Makes zeros of a shape and a dtype. Memory is allocated when the array is evaluated."""


class LayerCache(ABC):
    """Base class of the caches of one layer, which keep earlier tokens between passes.

    An `AttentionCache` keeps keys and values, and a `StateCache` keeps the states of a recurrent
    layer. A cache sees no weights.

    Attributes:
        lent: the loan of a stack that keeps the arrays, and the index of the cache in the loan;
            None if the cache has its arrays. Only `GrowingCache` and `PagedCache` lend: see
            `tinyllm_layers.cache.loan`.
    """

    __slots__ = ("__weakref__",)

    lent: tuple[Loan[object], int] | None = None

    @property
    @abstractmethod
    def arrays(self) -> list[mx.array]:
        """The stored arrays, to be evaluated at the end of a prefill chunk.

        If a stack keeps the arrays (`lent`), reading the property takes them back. This ends the
        loan of all caches of the stack, and waits for the device.
        """

    @property
    def nbytes(self) -> int:
        """Bytes of the allocated arrays, unused capacity included.

        Lent arrays are taken back, which waits for the device: see `arrays`.
        """
        return sum(array.nbytes for array in self.arrays)


class AttentionCache(LayerCache):
    """The keys and values of one attention layer.

    Each subclass has its own layout: dense, rotating, quantized or paged.
    """

    __slots__ = ()

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


@dataclass(frozen=True)
class StateShape:
    """The shape of the state of one sequence in one recurrent layer.

    Attributes:
        kernel: K, the number of weights per channel of the convolution, which keeps K-1 inputs.
        channels: C, the number of channels of the convolution.
        num_heads: Hv, the number of value heads.
        value_dim: Dv.
        key_dim: Dk.
        dtype: the dtype of the inputs of the convolution. The matrices are float32.
    """

    kernel: int
    channels: int
    num_heads: int
    value_dim: int
    key_dim: int
    dtype: mx.Dtype

    @property
    def nbytes(self) -> int:
        """Bytes of one state."""
        matrices = self.num_heads * self.value_dim * self.key_dim * mx.float32.size
        return (self.kernel - 1) * self.channels * self.dtype.size + matrices

    def slots(self, count: int, zeros: Zeros = mx.zeros) -> tuple[mx.array, mx.array]:
        """Return `count` slots of zeros: `count K-1 C` and `count Hv Dv Dk`."""
        matrix = (self.num_heads, self.value_dim, self.key_dim)
        return (
            zeros((count, self.kernel - 1, self.channels), self.dtype),
            zeros((count, *matrix), mx.float32),
        )


class StateCache(LayerCache):
    """The states of one recurrent layer, in numbered slots: `P ...` arrays.

    A state has two parts: the last K-1 inputs of the convolution, and a matrix for each head.
    """

    __slots__ = ()

    @abstractmethod
    def slots_and_table(
        self, batch: Batch, shape: StateShape
    ) -> tuple[Float[mx.array, "P inputs C"], Float32[mx.array, "P Hv Dv Dk"], StateTable]:
        """Return the slots of both parts, and the slots that the sequences of the pass use.

        The cache is unchanged until `commit`. The caller must drop its references to the arrays
        before the graph is computed, or a native primitive copies them.

        Args:
            batch: the layout of the pass.
            shape: the shape of one state.

        Raises:
            ValueError: if the batch or the shape does not fit the cache.
        """

    @abstractmethod
    def commit(
        self,
        conv: Float[mx.array, "P inputs C"],
        state: Float32[mx.array, "P Hv Dv Dk"],
        table: StateTable,
        phase: Phase,
    ) -> None:
        """Replace the slots by updated slots, after a pass with the table from `slots_and_table`.

        Args:
            conv: the slots with the last inputs of the convolution.
            state: the slots with the matrices of the heads.
            table: the table from `slots_and_table`.
            phase: the phase of the pass.
        """


class SequenceCache(LayerCache):
    """A cache of B sequences that always have equal lengths.

    New tokens follow the tokens seen before. Some caches can be trimmed to a prefix.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def offset(self) -> int:
        """The number of tokens seen so far, which is the position of the next token."""

    def set_expected_length(self, length: int) -> None:
        """Prepare for a text of `length` tokens, which later passes will append.

        A cache whose arrays grow gets an array of this capacity at once, instead of one after the
        other. Each of them is copied to the next. Other caches ignore the call.
        """

    @abstractmethod
    def can_trim(self, length: int) -> bool:
        """Return True if the cache can be trimmed to its first `length` tokens."""

    def trimmable(self, length: int) -> int:
        """Return the longest prefix of at most `length` tokens to which the cache can be trimmed.

        The result is 0 if there is none. The text must then be computed from its beginning, with a
        new cache. Most caches that can be trimmed to a prefix can be trimmed to every longer one.
        Other caches override this method.
        """
        longest = min(length, self.offset)
        return longest if self.can_trim(longest) else 0

    @abstractmethod
    def trim(self, length: int) -> None:
        """Remove all but the first `length` tokens.

        Raises:
            ValueError: if `can_trim(length)` is false.
        """

    @abstractmethod
    def fork(self) -> "SequenceCache":
        """Return a second cache with the same tokens.

        Both caches share their arrays until the next write to one of them copies the arrays.
        """


class KVCache(SequenceCache, AttentionCache):
    """The keys and values of one layer for B sequences that always have equal lengths."""

    __slots__ = ()

    @abstractmethod
    def update(
        self, k: Float[mx.array, "B Hkv L D"], v: Float[mx.array, "B Hkv L D"]
    ) -> tuple[Weight, Weight]:
        """Append keys and values of L tokens, and return all stored keys and values.

        Layers call `attend`, which also appends. `update` is for code that fills or reads a cache
        without queries.

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
    def fork(self) -> "KVCache":
        """Return a second cache with the same tokens."""
