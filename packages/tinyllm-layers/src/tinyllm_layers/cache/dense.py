"""Caches in arrays that grow in steps: their base class, and the dense cache."""

from abc import abstractmethod
from collections.abc import Sequence

import mlx.core as mx
from jaxtyping import Float, Shaped
from tinyllm_ops import Mask, OpSet
from tinyllm_ops.checks import check_appended, check_new_tokens

from tinyllm_layers.batch import Batch
from tinyllm_layers.cache.base import KVCache
from tinyllm_layers.cache.loan import TokenLoan

CAPACITY_STEP = 256
"""The capacity of an array is a multiple of this number of tokens."""


class GrowingCache(KVCache):
    """A cache that keeps every token, in arrays that a stack may write to and borrow.

    A native stack asks for the arrays (`reserve`), writes new tokens to their axis `capacity` from
    index `offset` on, and hands the updated arrays back (`commit`). Or it borrows the arrays for
    several passes (`lend`).
    """

    __slots__ = ("_buffers", "lent")  # as in `TokenBuffer`

    lent: tuple[TokenLoan, int] | None

    def __init__(self, count: int) -> None:
        """Make an empty cache of `count` arrays."""
        self._buffers = [TokenBuffer() for _ in range(count)]
        self.lent = None

    @property
    def offset(self) -> int:
        """The number of tokens seen so far."""
        if self.lent is None:
            return self._buffers[0].length
        loan, index = self.lent
        return loan.offset(index)

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays of keys and values. See `LayerCache.arrays` for a cache that is lent."""
        return [array for buffer in self._take_back() for array in buffer.arrays]

    @abstractmethod
    def reserve(
        self, new_shape: Sequence[int], dtype: mx.Dtype, least: int = 0
    ) -> list[Shaped[mx.array, "*lead capacity _"]]:
        """Return the arrays, with capacity for new tokens.

        A native primitive writes the new tokens to the axis `capacity`, from index `offset` on. Its
        outputs are passed to `commit`. The caller must drop its references to the arrays before the
        graph is computed, or MLX copies the arrays.

        Args:
            new_shape: the shape `B Hkv L D` of the new keys, and of the new values.
            dtype: the dtype of the new keys.
            least: the least capacity, a multiple of `CAPACITY_STEP`.

        Raises:
            ValueError: if shape or dtype differ from the stored tokens.
        """

    def commit(self, arrays: Sequence[Shaped[mx.array, "*lead capacity _"]], count: int) -> None:
        """Replace the arrays by updated arrays, which hold `count` more tokens.

        `offset` is the length of the first buffer, which comes last: if Ctrl-C comes in between,
        no buffer is shorter than `offset`, and all can be trimmed to it.
        """
        pairs = list(zip(self._take_back(), arrays, strict=True))
        for buffer, array in reversed(pairs):
            buffer.commit(array, count)

    def lend(self, loan: TokenLoan, index: int) -> None:
        """Leave the arrays of `reserve` to a stack, until this cache needs them.

        See `tinyllm_layers.cache.loan`.

        Args:
            loan: the loan. It counts the tokens of the passes since `reserve`.
            index: the index of the cache in the loan.
        """
        self.lent = loan, index  # first: if Ctrl-C comes in between, the loan has the arrays
        for buffer in self._buffers:
            buffer.lend()

    def set_expected_length(self, length: int) -> None:
        """Prepare for a text of `length` tokens: see `SequenceCache.set_expected_length`."""
        for buffer in self._buffers:
            buffer.expected_length = length

    def can_trim(self, length: int) -> bool:
        """Return True if the cache holds at least `length` tokens."""
        return 0 <= length <= self.offset

    def trim(self, length: int) -> None:
        """Remove all but the first `length` tokens."""
        if self.lent is not None and self.can_trim(length):
            loan, index = self.lent
            loan.trim(index, length)
        else:
            for buffer in self._take_back():
                buffer.trim(length)

    def _take_back(self) -> list["TokenBuffer"]:
        """Return the buffers with their arrays. If these are lent, end the loan: see `Loan`."""
        if self.lent is not None:
            loan, index = self.lent
            for buffer, array in zip(self._buffers, loan.take(index), strict=True):
                buffer.commit(array, loan.offset(index) - buffer.length)
            self.lent = None
            loan.release(index)
        return self._buffers

    def _forked_buffers(self) -> list["TokenBuffer"]:
        """Return buffers with the same tokens, for a second cache."""
        return [buffer.fork() for buffer in self._take_back()]


class DenseCache(GrowingCache):
    """A cache that stores every key and value in the dtype of the model.

    Keys and values are one array, `B 2 Hkv capacity D`, because MLX and Python need some
    microseconds a token for each array.
    """

    __slots__ = ()

    def __init__(self) -> None:
        """Make an empty cache."""
        super().__init__(1)

    def update(
        self,
        k: Float[mx.array, "B Hkv L D"],
        v: Float[mx.array, "B Hkv L D"],
    ) -> tuple[Float[mx.array, "B Hkv S D"], Float[mx.array, "B Hkv S D"]]:
        """Append keys and values, and return the keys and values of all tokens."""
        (buffer,) = self._take_back()
        check_appended(k, v, _keys_shape(buffer), buffer.dtype)
        buffer.commit(self._extended(k, v), k.shape[2])
        filled = buffer.filled
        return filled[:, 0], filled[:, 1]

    def attend(
        self,
        q: Float[mx.array, "B H L D"],
        k: Float[mx.array, "B Hkv L D"],
        v: Float[mx.array, "B Hkv L D"],
        batch: Batch,
        scale: float,
        ops: OpSet,
    ) -> Float[mx.array, "B H L D"]:
        """Append k and v, and attend causally to all tokens."""
        (buffer,) = self._take_back()
        check_new_tokens(q, k, v, (batch.rows, batch.length), _keys_shape(buffer), buffer.dtype)
        batch.check_follows(self.offset)
        array, seen = self._extended(k, v), slice(self.offset + k.shape[2])
        # A single query is the last token. It sees every key and needs no mask.
        mask: Mask = "causal" if q.shape[2] > 1 else None
        keys, values = array[:, 0, :, seen], array[:, 1, :, seen]
        out = ops.attention(q, keys, values, scale, mask, phase=batch.phase)
        buffer.commit(array, k.shape[2])
        return out

    def reserve(
        self, new_shape: Sequence[int], dtype: mx.Dtype, least: int = 0
    ) -> list[Float[mx.array, "B 2 Hkv capacity D"]]:
        """Return the array of keys and values, with capacity for new tokens."""
        rows, *rest = new_shape
        (buffer,) = self._take_back()
        return [buffer.reserve((rows, 2, *rest), dtype, least)]

    def fork(self) -> "DenseCache":
        """Return a second cache with the same tokens."""
        fork = DenseCache()
        fork._buffers = self._forked_buffers()
        return fork

    def _extended(
        self, k: Float[mx.array, "B Hkv L D"], v: Float[mx.array, "B Hkv L D"]
    ) -> Float[mx.array, "B 2 Hkv capacity D"]:
        """Return an updated array in which k and v are appended."""
        (reserved,) = self.reserve(k.shape, k.dtype)
        array = alias(reserved)
        new = slice(self.offset, self.offset + k.shape[2])
        array[:, 0, :, new] = k
        array[:, 1, :, new] = v
        return array


class TokenBuffer:
    """An array of shape `*lead tokens width` that grows by appending tokens.

    The capacity grows by a quarter, and at least by `CAPACITY_STEP` tokens, so that most appends
    write only the new tokens: MLX updates an array in place if nothing else refers to it when the
    update is scheduled (`mx.eval`, `mx.async_eval`). A running pass refers to its inputs. If the
    next pass is scheduled while a pass still runs, the update copies the whole array. So a caller
    may build the graph of the next pass while a pass runs, but must schedule it after the pass has
    ended.

    Attributes:
        length: the number of tokens that were appended and not trimmed.
        expected_length: the number of tokens that an array has capacity for if it has to grow.
    """

    # Without a dict. While the layers of a token are computed, their weights evict these objects
    # from the processor's caches, and every dict is one more access to memory.
    __slots__ = ("_accepted", "_array", "_capacity", "_reserved", "expected_length", "length")

    def __init__(self) -> None:
        """Make an empty buffer. The first tokens determine shape and dtype."""
        self.length = self.expected_length = 0
        self._array: Shaped[mx.array, "*lead capacity width"] | None = None
        # Every token reserves memory in the buffer of each layer. Reading the shape and dtype of an
        # array takes most of that time, so the buffer keeps the last shape and dtype that fitted.
        self._capacity = self._reserved = 0
        self._accepted: tuple[tuple[int, ...], mx.Dtype] | None = None

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of the array, `*lead capacity width`; None before the first tokens."""
        return None if self._array is None else tuple(self._array.shape)

    @property
    def dtype(self) -> mx.Dtype | None:
        """The dtype of the array; None before the first tokens."""
        return None if self._array is None else self._array.dtype

    @property
    def arrays(self) -> list[mx.array]:
        """The array as a list; an empty list before the first tokens."""
        return [] if self._array is None else [self._array]

    @property
    def filled(self) -> Shaped[mx.array, "*lead tokens width"]:
        """The tokens that were appended and not trimmed."""
        assert self._array is not None  # the caller stores tokens first
        return self._array[..., : self.length, :]

    def extended(
        self, x: Shaped[mx.array, "*lead new width"]
    ) -> Shaped[mx.array, "*lead capacity width"]:
        """Return an updated array in which x is appended. The buffer is unchanged until `commit`.

        Raises:
            ValueError: if x differs in shape or dtype from the stored tokens.
        """
        array = alias(self.reserve(x.shape, x.dtype))
        array[..., self.length : self.length + x.shape[-2], :] = x
        return array

    def reserve(
        self, new_shape: Sequence[int], dtype: mx.Dtype, least: int = 0
    ) -> Shaped[mx.array, "*lead capacity width"]:
        """Return the array with capacity for new tokens. The buffer is unchanged until `commit`.

        Args:
            new_shape: the shape `*lead L width` of L new tokens.
            dtype: the dtype of the new tokens.
            least: the least capacity.

        Raises:
            ValueError: if shape or dtype differ from the stored tokens.
        """
        end = self.length + new_shape[-2]
        accepted = (tuple(new_shape), dtype)
        wanted = max(end, least)
        if self._array is not None and wanted <= self._capacity and accepted == self._accepted:
            self._reserved = self._capacity
            return self._array
        capacity = max(self._capacity_for(end), least)
        array = with_capacity(self._array, new_shape, dtype, capacity)
        self._reserved = array.shape[-2]
        if array is self._array:
            self._accepted = accepted
        return array

    def commit(self, array: Shaped[mx.array, "*lead capacity width"], count: int) -> None:
        """Replace the array by an updated array, which holds `count` more tokens."""
        self._array = array
        self._capacity = self._reserved
        self.length += count

    def lend(self) -> None:
        """Drop the array after `reserve`, until `commit`."""
        self._array = None

    def trim(self, length: int) -> None:
        """Remove all but the first `length` tokens. The capacity stays.

        Raises:
            ValueError: if there are fewer than `length` tokens.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"length: expected 0 to {self.length}, got {length}")
        self.length = length

    def fork(self) -> "TokenBuffer":
        """Return a second buffer with the same tokens.

        Both buffers share one array. The next write to one of the buffers copies the array.
        """
        fork = TokenBuffer()
        fork.length, fork.expected_length = self.length, self.expected_length
        fork._array = None if self._array is None else alias(self._array)
        return fork

    def _capacity_for(self, end: int) -> int:
        """Return the capacity of an array with `end` tokens, which grows only if it must."""
        present = 0 if self._array is None else self._array.shape[-2]
        if end <= present:
            return present
        wanted = max(end, self.expected_length, present + present // 4)
        return -(-wanted // CAPACITY_STEP) * CAPACITY_STEP


def _keys_shape(buffer: TokenBuffer) -> tuple[int, ...] | None:
    """Return the shape `B Hkv capacity D` of the keys in a buffer; None before the first tokens."""
    shape = buffer.shape
    return None if shape is None else (shape[0], *shape[2:])


def alias(x: Shaped[mx.array, "..."]) -> Shaped[mx.array, "..."]:
    """Return a second array object for the same data, so that a slice update does not change x."""
    return x[...]


def with_capacity(
    array: Shaped[mx.array, "*lead present width"] | None,
    new_shape: Sequence[int],
    dtype: mx.Dtype,
    capacity: int,
) -> Shaped[mx.array, "*lead capacity width"]:
    """Return an array with a capacity of at least `capacity` tokens.

    Args:
        array: the array to extend with zeros if it is too small; None to make a new array.
        new_shape: the shape `*lead L width` of the tokens that will be written.
        dtype: the dtype of the tokens that will be written.
        capacity: the number of tokens that the array must hold.

    Raises:
        ValueError: if the tokens have another shape or dtype than the array. A slice update would
            broadcast and cast them without an error.
    """
    *lead, _, width = new_shape
    if array is None:
        return _empty((*lead, capacity, width), dtype)
    if (*lead, width) != (*array.shape[:-2], array.shape[-1]):
        expected = (*array.shape[:-2], new_shape[-2], array.shape[-1])
        raise ValueError(f"x: expected shape {expected}, got {tuple(new_shape)}")
    if dtype != array.dtype:
        raise ValueError(f"x: expected dtype {array.dtype}, got {dtype}")
    missing = capacity - array.shape[-2]
    if missing <= 0:
        return array
    more = _empty((*array.shape[:-2], missing, array.shape[-1]), array.dtype)
    return mx.concatenate([array, more], axis=-2)


def _empty(shape: tuple[int, ...], dtype: mx.Dtype) -> Shaped[mx.array, "..."]:
    """Return an array without tokens: one zero in memory, until the first tokens are written.

    An op that updates a part of the array makes the memory. The native stack leaves it
    uninitialized where no token has been written, because no kernel reads it.
    """
    return mx.broadcast_to(mx.array(0, dtype), shape)
