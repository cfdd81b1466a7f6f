"""The grader of `quantize_group` accepts all forms of numbers, and explains malformed parts."""

import math
import re
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_ops.testing.exercises import ExerciseError, grade_quantize_group

Parts = Callable[[list[int], float, float], object]


def quantized(numbers: list[float], steps: int = 15) -> tuple[list[int], float, float]:
    scale = (max(numbers) - min(numbers)) / steps or 1.0
    return [round((number - min(numbers)) / scale) for number in numbers], scale, min(numbers)


def grade(parts: Parts, steps: int = 15) -> str:
    """Grade a solution that returns its parts in another form."""

    def solution(numbers: list[float]) -> Any:  # parts of other types than those of the page
        return parts(*quantized(numbers, steps))

    return grade_quantize_group(solution)


@pytest.mark.parametrize(
    "parts",
    [
        lambda codes, scale, bias: (tuple(codes), scale, bias),
        lambda codes, scale, bias: ([float(code) for code in codes], scale, bias),
        lambda codes, scale, bias: (np.array(codes, np.uint8), np.float32(scale), np.float32(bias)),
        lambda codes, scale, bias: (mx.array(codes), mx.array(scale), mx.array(bias)),
        lambda codes, scale, bias: (list(mx.array(codes)), np.array(scale), bias),
        lambda codes, scale, bias: (mx.array(codes, mx.bfloat16), scale, bias),
    ],
)
def test_numbers_of_any_form_pass(parts: Parts) -> None:
    assert grade(parts) == "quantize_group: all 6 cases pass"


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        (lambda codes, scale, bias: (None, scale, bias), "64 integers, got None"),
        (lambda codes, scale, bias: (3, scale, bias), "64 integers, got 3"),
        (lambda codes, scale, bias: ([codes], scale, bias), r"64 integers, got \[\["),
        (lambda codes, scale, bias: ([codes, [1]], scale, bias), r"64 integers, got \[\["),
        (lambda codes, scale, bias: (iter(codes), scale, bias), "64 integers, got <list_iterat"),
        (lambda codes, scale, bias: (["3"] * 64, scale, bias), r"64 integers, got \['3'"),
        (lambda codes, scale, bias: (bytes(codes), scale, bias), "64 integers, got b'"),
        (lambda codes, scale, bias: (codes, None, bias), "scale and bias, got None and -"),
        (lambda codes, scale, bias: (codes, scale, "0"), "scale and bias, got 0.* and '0'"),
        (lambda codes, scale, bias: (codes, [scale], [bias]), r"scale and bias, got \[0.* and \[-"),
        (lambda codes, scale, bias: (codes, math.nan, bias), "scale and bias, got nan and -"),
        (
            lambda codes, scale, bias: ([0] * 64, 0.0, bias + scale * np.array(codes)),
            "scale and bias, got 0.0 and array",
        ),
    ],
)
def test_malformed_parts_fail_with_a_hint(parts: Parts, found: str) -> None:
    with pytest.raises(ExerciseError, match="hint: return codes, scale, bias: a list") as caught:
        grade(parts)
    assert re.search(rf"64 normal numbers\nexpected .*{found}", str(caught.value)), caught.value


@pytest.mark.parametrize(
    ("parts", "steps"),
    [
        (lambda codes, scale, bias: (codes, bias, scale), 15),
        (lambda codes, scale, bias: (codes, scale, bias), 14),
        (lambda codes, scale, bias: ([min(code, 15) for code in codes], scale, bias), 16),
        (lambda codes, scale, bias: (codes, scale, bias + scale / 2), 15),
    ],
)
def test_a_wrong_scale_or_bias_is_not_called_a_wrong_rounding(parts: Parts, steps: int) -> None:
    with pytest.raises(ExerciseError, match=r"hint: the bias is the smallest number.* / 15$"):
        grade(parts, steps)
