"""Tolerances for comparisons of an op with the oracle, one number for each dtype.

An error is relative to the largest number of the whole expected array, not to each element: a sum
that cancels to almost nothing keeps the rounding error of its terms, in any order of summation.
Each tolerance is a few roundings of its dtype. float32 has 84 eps, because long sums accumulate
many roundings. float16 and bfloat16 have 2 eps, because their sums are float32 and the result is
rounded once or twice.
"""

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

TOLERANCE = {mx.float32: 1e-5, mx.float16: 2e-3, mx.bfloat16: 1.6e-2}

# Absolute error allowed below the smallest normal number of a dtype, where rounding is no longer
# relative. 2^-24 is the step of float16. In float32 and bfloat16, which have the same exponents,
# the hardware may flush smaller numbers to zero.
UNDERFLOW = {mx.float32: 2.0**-126, mx.float16: 2.0**-24, mx.bfloat16: 2.0**-126}

# Error of a rotary angle, in radians per token of position. An angle is float32, with 24 bits, for
# every dtype of x. An error of `ANGLE` radians changes the result of `rope` by the same fraction of
# its size. From position 100 on this error exceeds the tolerance of float32, also in the
# implementations that trained the models.
ANGLE = 2.0**-23


def assert_close(
    actual: mx.array,
    expected: NDArray[np.float64],
    dtype: mx.Dtype | None = None,
    *,
    position: int = 0,
) -> None:
    """Check max |actual - expected| <= tolerance * max |expected|, over the whole array.

    Infinities and NaN must have the same indices and signs in both arrays. The two maxima are taken
    over the finite numbers.

    Args:
        actual: the result of an implementation.
        expected: the result of the oracle, in float64.
        dtype: the dtype whose tolerance applies; the dtype of `actual` unless given.
        position: the largest position of a rotated token in `actual`; see `ANGLE`.

    Raises:
        AssertionError: with the worst index, and the expected and the actual number there.
        ValueError: if `TOLERANCE` does not have the dtype.
    """
    dtype = actual.dtype if dtype is None else dtype
    if dtype not in TOLERANCE:
        known = ", ".join(str(known) for known in TOLERANCE)
        raise ValueError(f"dtype: expected one of {known}, got {dtype}")
    if tuple(actual.shape) != expected.shape:
        raise AssertionError(f"expected shape {expected.shape}, got {tuple(actual.shape)}")
    got = np.array(actual.astype(mx.float32)).astype(np.float64)
    finite = np.isfinite(expected)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    misplaced = np.where(finite, ~np.isfinite(got), ~same)
    if misplaced.any():
        _fail(got, expected, misplaced.astype(np.float64), "infinities and NaN differ")
    error = np.asarray(np.abs(np.where(finite, got, 0) - np.where(finite, expected, 0)))
    size = np.abs(expected, where=finite, out=np.zeros_like(expected)).max(initial=0.0)
    tolerance = TOLERANCE[dtype] + ANGLE * position
    limit = tolerance * size + UNDERFLOW[dtype]
    if error.max(initial=0.0) > limit:
        found = f"error {error.max():.3g}, limit {limit:.3g} = {tolerance:g} * {size:.6g}"
        _fail(got, expected, error, found)


def _fail(
    got: NDArray[np.float64],
    expected: NDArray[np.float64],
    badness: NDArray[np.float64],
    found: str,
) -> None:
    worst = np.unravel_index(int(badness.argmax()), badness.shape)
    where = tuple(int(i) for i in worst)
    raise AssertionError(
        f"{found}; at {where}: expected {expected[worst]:.9g}, got {got[worst]:.9g}"
    )
