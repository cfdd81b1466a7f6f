"""The exercise of chapter 5: quantize one group of numbers."""

from collections.abc import Callable, Sequence
from reprlib import repr as shortened

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tinyllm_ops.testing.exercises.case import call, failure, kind, passed

_NAME = "quantize_group"
_PARTS = "return codes, scale, bias: a list of 64 integers and two numbers"
_ROUNDED = "a code is (number - bias) / scale, rounded and not truncated"
_RANGE = "the bias is the smallest number, and the scale is (max - min) / 15"


def grade_quantize_group(
    solution: Callable[[list[float]], tuple[Sequence[int], float, float]],
) -> str:
    """Grade `quantize_group(numbers)`: codes from 0 to 15, a scale and a bias.

    scale * code + bias must be within half a step of each number, where a step is
    (max - min) / 15.

    Raises:
        ExerciseError: if the parts have wrong types, or if a code or a number is wrong.
    """
    random = np.random.default_rng(10)
    outlier = random.normal(size=64)
    outlier[17] = 40.0
    cases = {
        "64 normal numbers": random.normal(size=64),
        "numbers from 3 to 4": random.uniform(3, 4, size=64),
        "negative numbers": random.uniform(-9, -1, size=64),
        "an outlier": outlier,
        "equal numbers": np.full(64, 0.25),
        "zeros": np.zeros(64),
    }
    for name, numbers in cases.items():
        result = call(name, solution, (numbers.tolist(),))
        if not isinstance(result, tuple) or len(result) != 3:
            found = f"expected a tuple of three, got {kind(result)}"
            raise failure(_NAME, name, found, "return codes, scale, bias")
        codes, scale, bias = (_numbers(part) for part in result)
        if codes is None or codes.ndim != 1:
            found = f"expected 64 integers, got {shortened(result[0])}"
            raise failure(_NAME, name, found, _PARTS)
        if scale is None or bias is None or not (_is_finite(scale) and _is_finite(bias)):
            found = (
                "expected finite numbers for scale and bias, "
                f"got {shortened(result[1])} and {shortened(result[2])}"
            )
            raise failure(_NAME, name, found, _PARTS)
        _check_codes(name, numbers, codes, float(scale), float(bias))
    return passed(_NAME, len(cases))


def _check_codes(
    name: str,
    numbers: NDArray[np.float64],
    codes: NDArray[np.float64],
    scale: float,
    bias: float,
) -> None:
    """Check that codes are whole, within 4 bits, and decode to the numbers.

    Raises:
        ExerciseError: if a code or a number is wrong.
    """
    if len(codes) != len(numbers) or not np.array_equal(codes, np.round(codes)):
        hint = "round each code to the nearest integer; if max - min is 0, do not divide by it"
        raise failure(_NAME, name, f"expected 64 integers, got {codes.tolist()}", hint)
    if not 0 <= codes.min() <= codes.max() <= 15:
        found = f"expected codes from 0 to 15, got {codes.min():.0f} to {codes.max():.0f}"
        raise failure(_NAME, name, found, _RANGE)
    error = np.abs(scale * codes + bias - numbers)
    least, step = numbers.min(), np.ptp(numbers) / 15
    if not error.max() <= step / 2 + 1e-6 * np.abs(numbers).max():
        at = int(error.argmax())
        decoded = scale * codes[at] + bias
        found = f"number {at}: expected {numbers[at]:.4g} within {step / 2:.3g}, got {decoded:.4g}"
        if step == 0:
            hint = "if all numbers are equal, max - min is 0: use any scale above 0"
        elif abs(scale - step) > 0.01 * step or abs(bias - least) > 0.1 * step:
            found += f"\nexpected scale {step:.4g}, got {scale:.4g}"
            found += f"\nexpected bias {least:.4g}, got {bias:.4g}"
            hint = _RANGE
        else:
            hint = _ROUNDED
        raise failure(_NAME, name, found, hint)


def _numbers(part: object) -> NDArray[np.float64] | None:
    """Return a number or a sequence in float64, or None for anything else."""
    try:
        array = np.array(part.tolist() if isinstance(part, mx.array) else part)
    except ValueError:  # a list of lists of different lengths
        return None
    return array.astype(np.float64) if array.dtype.kind in "biuf" else None


def _is_finite(part: NDArray[np.float64]) -> bool:
    """Return True for one finite number."""
    return part.ndim == 0 and bool(np.isfinite(part))
