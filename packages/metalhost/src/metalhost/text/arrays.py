"""Conversion of NumPy arrays, MLX arrays and Python numbers to the bytes of a buffer, and back."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from metalhost.text.element_type import TYPES, ElementType, element_type

if TYPE_CHECKING:
    import mlx.core as mx

Array: TypeAlias = "NDArray[np.generic] | mx.array"
Scalar: TypeAlias = bool | int | float | np.generic


@dataclass(frozen=True)
class Input:
    """Input of a kernel.

    Attributes:
        data: the elements. bfloat16 elements are stored as uint16.
        type: element type.
    """

    data: NDArray[np.generic]
    type: ElementType

    @classmethod
    def from_value(cls, value: "Array | Scalar", row_contiguous: bool) -> "Input":
        """Convert an argument as MLX does: a Python number becomes an array without axes.

        Args:
            value: argument of the kernel.
            row_contiguous: True to copy an array that is not row-contiguous.

        Raises:
            ValueError: if Metal does not support the element type, or a stride is negative.
        """
        if isinstance(value, bool):
            return cls(np.array(value), TYPES["bool"])
        if isinstance(value, int):
            fits = -(2**31) <= value < 2**31
            dtype = TYPES["int32" if fits else "int64"]
            return cls(np.array(value, dtype.storage), dtype)
        if isinstance(value, float):
            return cls(np.array(value, np.float32), TYPES["float32"])
        dtype = element_type(value.dtype)
        data = np.asarray(_mlx_to_storage(value, dtype) if is_mlx(value) else value)
        data = data.astype(data.dtype.newbyteorder("="), copy=False).view(dtype.storage)
        # The strides of a NumPy record field need not be whole elements. MLX arrays always have
        # whole strides, and a kernel counts strides in elements.
        fractional = any(stride % data.itemsize for stride in data.strides)
        if (row_contiguous or fractional) and data.ndim:
            data = np.ascontiguousarray(data)
        if any(stride < 0 for stride in data.strides):
            raise ValueError(f"strides: expected none below 0, got {data.strides}")
        return cls(data, dtype)

    @property
    def strides(self) -> list[int]:
        """Strides in elements, as MLX counts them."""
        return [stride // self.data.itemsize for stride in self.data.strides]

    def bytes(self) -> bytes:
        """Return the memory from the first to the last element, gaps between rows included."""
        if self.data.flags.c_contiguous:
            return self.data.tobytes()
        if self.data.size == 0:
            return b""
        axes = zip(self.data.shape, self.data.strides, strict=True)
        extent = sum((size - 1) * stride for size, stride in axes) + self.data.itemsize
        flat = np.lib.stride_tricks.as_strided(
            self.data, (extent // self.data.itemsize,), (self.data.itemsize,)
        )
        return flat.tobytes()


def is_mlx(value: object) -> bool:
    """Return True for an MLX array or dtype, without importing MLX."""
    return type(value).__module__.startswith("mlx.")


def _mlx_to_storage(value: object, dtype: ElementType) -> Array:
    import mlx.core as mx  # an MLX array is proof that MLX is installed

    assert isinstance(value, mx.array)
    return value.view(mx.uint16) if dtype.name == "bfloat16" else value


def to_array(raw: bytes, shape: Sequence[int], dtype: object, as_mlx: bool) -> Array:
    """Convert the bytes of an output to an array.

    Raises:
        ValueError: if the dtype is bfloat16 and neither MLX nor ml_dtypes provides it.
    """
    element = element_type(dtype)
    data = np.frombuffer(raw, element.storage).reshape(shape).copy()
    if as_mlx:
        import mlx.core as mx  # the caller passed an MLX array or dtype, so MLX is installed

        array = mx.array(data)
        return array.view(mx.bfloat16) if element.name == "bfloat16" else array
    if element.name != "bfloat16":
        return data
    if "ml_dtypes" not in sys.modules:
        raise ValueError("dtype: expected MLX arrays or ml_dtypes.bfloat16, got 'bfloat16'")
    return data.view(np.dtype("bfloat16"))


def filled_bytes(value: float, count: int, dtype: ElementType) -> bytes:
    """Return the bytes of `count` elements of the same value."""
    if dtype.name == "bfloat16":
        bits = int(np.float32(value).view(np.uint32))
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return np.full(count, rounded, np.uint16).tobytes()
    return np.full(count, value).astype(dtype.storage).tobytes()
