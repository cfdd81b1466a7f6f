"""Tensors packed in a few bits per number, and the functions that pack and dequantize them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeGuard, get_args

import mlx.core as mx
from jaxtyping import Float, Shaped, UInt32

from tinyllm_ops.quantization.microscaling import FloatMode, code_value, scale_value

QuantizationMode = Literal["affine", FloatMode]
"""The mode of a packed format, as in `mx.quantize`: "affine", "mxfp4", "mxfp8" or "nvfp4"."""

QUANTIZATION_MODES: tuple[QuantizationMode, ...] = get_args(QuantizationMode)
AFFINE: Final = "affine"
FLOAT_MODES: dict[str, tuple[int, int]] = {
    # mode: (bits, group)
    "mxfp4": (4, 32),
    "mxfp8": (8, 32),
    "nvfp4": (4, 16),
}
AFFINE_BITS = (2, 3, 4, 5, 6, 8)
AFFINE_GROUPS = (32, 64, 128)

_FIELD_TYPES = (
    ("packed", (mx.array,), "array"),
    ("scales", (mx.array,), "array"),
    ("biases", (mx.array, type(None)), "array or None"),
    ("group_size", (int,), "int"),
    ("bits", (int,), "int"),
    ("mode", (str,), "str"),
)


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """Codes of `bits` bits in groups. A group shares a scale, and in affine mode also a bias.

    Along the last axis I, `group_size` consecutive numbers form a group. `packed` holds the codes
    of a row as one little-endian bit stream, cut into words of 32 bits. The first code is in the
    lowest bits of the first word. `mx.quantize` has the same layout.

    Attributes:
        packed: codes, shape `*lead I*bits/32`.
        scales: one per group, shape `*lead I/group_size`; in the float modes one byte each.
        biases: one per group in affine mode, shape `*lead I/group_size`; otherwise None.
        group_size: numbers that share a scale.
        bits: width of a code.
        mode: "affine", "mxfp4", "mxfp8" or "nvfp4".

    Raises:
        ValueError: if the arrays do not fit each other or the format.
    """

    packed: UInt32[mx.array, "*lead words"]
    scales: Shaped[mx.array, "*lead groups"]
    biases: Shaped[mx.array, "*lead groups"] | None
    group_size: int = 64
    bits: int = 4
    mode: QuantizationMode = AFFINE

    def __post_init__(self) -> None:
        """Refuse arrays that do not fit each other or the format."""
        for name, types, expected in _FIELD_TYPES:
            if not isinstance(getattr(self, name), types):
                raise ValueError(
                    f"{name}: expected {expected}, got {type(getattr(self, name)).__name__}: the "
                    "order is packed, scales, biases, group_size, bits, mode"
                )
        check_format(self.group_size, self.bits, self.mode)
        if self.packed.dtype != mx.uint32:
            raise ValueError(f"packed: expected dtype uint32, got {self.packed.dtype}")
        if self.packed.ndim == 0:
            raise ValueError("packed: expected shape (..., words), got ()")
        if self.packed.shape[-1] * 32 % self.bits:
            raise ValueError(
                f"packed: {self.packed.shape[-1]} words do not hold a whole number of "
                f"{self.bits}-bit codes"
            )
        groups = (*self.packed.shape[:-1], self.shape[-1] // self.group_size)
        if self.shape[-1] % self.group_size or tuple(self.scales.shape) != groups:
            raise ValueError(
                f"scales: expected shape {groups} for {self.shape} in groups of "
                f"{self.group_size}, got {tuple(self.scales.shape)}"
            )
        if (self.biases is not None) != (self.mode == AFFINE):
            expected = "biases" if self.mode == AFFINE else "no biases"
            raise ValueError(f"biases: mode {self.mode!r} has {expected}")
        if self.biases is None:
            if self.scales.dtype != mx.uint8:
                raise ValueError(f"scales: expected dtype uint8, got {self.scales.dtype}")
            return
        if self.scales.dtype not in (mx.float32, mx.float16, mx.bfloat16):
            raise ValueError(
                f"scales: expected float32, float16 or bfloat16, got {self.scales.dtype}"
            )
        if tuple(self.biases.shape) != groups:
            raise ValueError(f"biases: expected shape {groups}, got {tuple(self.biases.shape)}")
        if self.biases.dtype != self.scales.dtype:
            raise ValueError(
                f"biases: expected dtype {self.scales.dtype}, as the scales, "
                f"got {self.biases.dtype}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the dequantized tensor, `*lead I`."""
        return (*self.packed.shape[:-1], self.packed.shape[-1] * 32 // self.bits)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed codes, scales and biases."""
        biases = 0 if self.biases is None else self.biases.nbytes
        return self.packed.nbytes + self.scales.nbytes + biases

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """The stored arrays: packed, scales, and biases in affine mode."""
        parts = (self.packed, self.scales)
        return parts if self.biases is None else (*parts, self.biases)

    def __getitem__(
        self, index: mx.array | slice | int | tuple[slice | int, ...]
    ) -> "QuantizedTensor":
        """Select along the leading axes; the last axis stays whole."""
        return self.map(lambda part: part[index])

    def map(self, transform: Callable[[mx.array], mx.array]) -> "QuantizedTensor":
        """Apply `transform`, which must keep the last axis, to each stored array."""
        return self.with_arrays(map(transform, self.arrays))

    def with_arrays(self, arrays: Iterable[mx.array]) -> "QuantizedTensor":
        """Return a tensor of this format with other arrays, in the order of `arrays`."""
        packed, scales, *biases = arrays
        return QuantizedTensor(
            packed, scales, biases[0] if biases else None, self.group_size, self.bits, self.mode
        )


Weight = mx.array | QuantizedTensor
"""The weight of a projection, or stored keys or values: dense, or packed in a few bits."""


def arrays_of(weight: Weight) -> tuple[mx.array, ...]:
    """Return the stored arrays of a weight: a dense weight is one array."""
    return weight.arrays if isinstance(weight, QuantizedTensor) else (weight,)


def map_arrays(transform: Callable[..., mx.array], weight: Weight, *others: Weight) -> Weight:
    """Apply `transform`, which must keep the last axis, to each stored array of a weight.

    Other weights must have the same format. `transform` gets the same array of each weight.
    """
    arrays = map(transform, *(arrays_of(each) for each in (weight, *others)))
    return weight.with_arrays(arrays) if isinstance(weight, QuantizedTensor) else next(arrays)


def is_quantization_mode(mode: str) -> TypeGuard[QuantizationMode]:
    """Return True if `mode` is a mode that MLX defines."""
    return mode in QUANTIZATION_MODES


def check_format(group_size: int, bits: int, mode: str) -> None:
    """Refuse formats that MLX does not define.

    Raises:
        ValueError: if `mode` is unknown, or does not allow `bits` or `group_size`.
    """
    if mode in FLOAT_MODES:
        if (bits, group_size) != FLOAT_MODES[mode]:
            expected = FLOAT_MODES[mode]
            raise ValueError(
                f"{mode} means {expected[0]} bits in groups of {expected[1]}, "
                f"got {bits} bits in groups of {group_size}"
            )
    elif not is_quantization_mode(mode):
        known = ", ".join(QUANTIZATION_MODES)
        raise ValueError(f"mode: expected one of {known}, got {mode!r}")
    elif bits not in AFFINE_BITS:
        raise ValueError(f"bits: expected one of {AFFINE_BITS}, got {bits}")
    elif group_size not in AFFINE_GROUPS:
        raise ValueError(f"group_size: expected one of {AFFINE_GROUPS}, got {group_size}")


def dequantize(q: QuantizedTensor, dtype: mx.Dtype = mx.float32) -> Float[mx.array, "*lead I"]:
    """Decode the numbers in float32 and round them to `dtype` once."""
    codes = unpack(q.packed, q.bits).reshape(*q.scales.shape, q.group_size)
    if q.mode == AFFINE:
        assert q.biases is not None  # checked by the constructor
        scales, biases = q.scales.astype(mx.float32), q.biases.astype(mx.float32)
        w = scales[..., None] * codes.astype(mx.float32) + biases[..., None]
    else:
        w = scale_value(q.scales, q.mode)[..., None] * code_value(codes, q.bits)
    return w.reshape(q.shape).astype(dtype)


def pack(codes: UInt32[mx.array, "*lead I"], bits: int) -> UInt32[mx.array, "*lead words"]:
    """Join codes end to end, lowest bit first, and cut the bit stream into words of 32 bits."""
    stream = (codes[..., None] >> mx.arange(bits, dtype=mx.uint32)) & 1  # *lead I bits
    words = stream.reshape(*codes.shape[:-1], codes.shape[-1] * bits // 32, 32)
    return (words << mx.arange(32, dtype=mx.uint32)).sum(-1).astype(mx.uint32)


def unpack(packed: UInt32[mx.array, "*lead words"], bits: int) -> UInt32[mx.array, "*lead I"]:
    """Undo `pack`. Code i starts at bit i*bits of the stream and may cross a word boundary."""
    if 32 % bits == 0:  # every code lies in one word
        codes = packed[..., None] >> mx.arange(0, 32, bits, dtype=mx.uint32)
        codes = codes.reshape(*packed.shape[:-1], packed.shape[-1] * 32 // bits)
    else:
        start = mx.arange(packed.shape[-1] * 32 // bits) * bits
        word, shift = start // 32, (start % 32).astype(mx.uint64)
        low = packed[..., word].astype(mx.uint64)
        high = packed[..., mx.minimum(word + 1, packed.shape[-1] - 1)].astype(mx.uint64)
        two_words = mx.bitwise_or(mx.left_shift(high, 32), low)
        codes = mx.right_shift(two_words, shift).astype(mx.uint32)
    return mx.bitwise_and(codes, 2**bits - 1)
