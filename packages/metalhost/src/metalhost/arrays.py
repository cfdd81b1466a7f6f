"""Arrays of NumPy and MLX, and plain numbers, as bytes for a launch and back."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from metalhost.element_type import TYPES, ElementType, element_type

if TYPE_CHECKING:
    import mlx.core as mx

Array: TypeAlias = "NDArray[np.generic] | mx.array"
Scalar: TypeAlias = bool | int | float


@dataclass(frozen=True)
class Input:
    """An argument of a kernel.

    Attributes:
        data: its elements; a bfloat16 as its bits.
        type: of its elements.
        of_mlx: whether it came as an MLX array.
    """

    data: NDArray[np.generic]
    type: ElementType
    of_mlx: bool = False

    @classmethod
    def of(cls, value: Array | Scalar, row_contiguous: bool) -> Input:
        """Take an argument as MLX would: a plain number is an array without axes.

        Raises:
            ValueError: if its elements have no type in Metal, or its strides are negative.
        """
        if isinstance(value, bool):
            return cls(np.array(value), TYPES["bool"])
        if isinstance(value, int):
            return cls(np.array(value, np.int32), TYPES["int32"])
        if isinstance(value, float):
            return cls(np.array(value, np.float32), TYPES["float32"])
        of_mlx = is_mlx(value)
        kind = element_type(value.dtype)
        data = np.asarray(_bits_of_mlx(value, kind) if of_mlx else value)
        data = data.astype(data.dtype.newbyteorder("="), copy=False).view(kind.storage)
        # A field of a record may begin between two elements; no array of MLX's does.
        between = any(stride % data.itemsize for stride in data.strides)
        if (row_contiguous or between) and data.ndim:
            data = np.ascontiguousarray(data)
        if any(stride < 0 for stride in data.strides):
            raise ValueError(f"strides: expected none below 0, got {data.strides}")
        return cls(data, kind, of_mlx)

    @property
    def strides(self) -> list[int]:
        """In elements, as MLX counts them."""
        return [stride // self.data.itemsize for stride in self.data.strides]

    def bytes(self) -> bytes:
        """From the first element to the last, with what lies between them."""
        if self.data.flags.c_contiguous:
            return self.data.tobytes()
        if self.data.size == 0:
            return b""
        steps = zip(self.data.shape, self.data.strides, strict=True)
        extent = sum((size - 1) * stride for size, stride in steps) + self.data.itemsize
        flat = np.lib.stride_tricks.as_strided(
            self.data, (extent // self.data.itemsize,), (self.data.itemsize,)
        )
        return flat.tobytes()


def is_mlx(value: object) -> bool:
    """Whether it is an array or a dtype of MLX, which need not be installed."""
    return type(value).__module__.startswith("mlx.")


def _bits_of_mlx(value: Array, kind: ElementType) -> Array:
    import mlx.core as mx  # only where the caller has it

    assert isinstance(value, mx.array)
    return value.view(mx.uint16) if kind.name == "bfloat16" else value


def output(raw: bytes, shape: Sequence[int], dtype: object, as_mlx: bool) -> Array:
    """An array of what a kernel wrote.

    Raises:
        ValueError: if the dtype is bfloat16, and neither MLX nor ml_dtypes brings one.
    """
    kind = element_type(dtype)
    data = np.frombuffer(raw, kind.storage).reshape(shape).copy()
    if as_mlx:
        import mlx.core as mx  # only where the caller has it

        array = mx.array(data)
        return array.view(mx.bfloat16) if kind.name == "bfloat16" else array
    if kind.name != "bfloat16":
        return data
    if "ml_dtypes" not in sys.modules:
        raise ValueError("dtype: expected MLX arrays or ml_dtypes.bfloat16, got 'bfloat16'")
    return data.view(np.dtype("bfloat16"))


def filled(value: float, count: int, kind: ElementType) -> bytes:
    """`count` elements of one value."""
    if kind.name == "bfloat16":
        bits = int(np.float32(value).view(np.uint32))
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return np.full(count, rounded, np.uint16).tobytes()
    return np.full(count, value).astype(kind.storage).tobytes()
