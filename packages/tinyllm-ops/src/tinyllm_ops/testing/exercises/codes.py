"""The exercise of chapter 5: quantize one group of numbers."""

from collections.abc import Callable, Sequence

import numpy as np

from tinyllm_ops.testing.exercises.case import call, failure, kind, passed

_NAME = "quantize_group"
_ROUNDED = "a code is (number - bias) / scale, rounded and not truncated"


def grade_quantize_group(
    solution: Callable[[list[float]], tuple[Sequence[int], float, float]],
) -> str:
    """Grade `quantize_group(numbers)`: codes from 0 to 15, a scale and a bias.

    scale * code + bias must be within half a step of each number, where a step is
    (max - min) / 15.

    Raises:
        ExerciseError: if a code or a number is wrong.
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
        codes, scale, bias = result
        whole = all(float(code).is_integer() for code in codes)
        if not whole or len(codes) != len(numbers):
            hint = "round each code to the nearest integer; if max - min is 0, do not divide by it"
            raise failure(_NAME, name, f"expected 64 integers, got {list(codes)}", hint)
        if not 0 <= min(codes) <= max(codes) <= 15:
            hint = "the bias is the smallest number, and the scale is (max - min) / 15"
            found = f"expected codes from 0 to 15, got {min(codes)} to {max(codes)}"
            raise failure(_NAME, name, found, hint)
        error = np.abs(scale * np.array(codes, dtype=np.float64) + bias - numbers)
        limit = np.ptp(numbers) / 30
        if not error.max() <= limit + 1e-6 * np.abs(numbers).max():
            at = int(np.nan_to_num(error, nan=np.inf).argmax())
            decoded = scale * codes[at] + bias
            found = f"number {at}: expected {numbers[at]:.4g} within {limit:.3g}, got {decoded:.4g}"
            hint = "if all numbers are equal, max - min is 0: use any scale above 0"
            raise failure(_NAME, name, found, hint if limit == 0 else _ROUNDED)
    return passed(_NAME, len(cases))
