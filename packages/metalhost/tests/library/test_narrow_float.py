"""16-bit floats as classes: bfloat, and half for compilers without _Float16."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from metalhost import Settings
from numpy.typing import NDArray

Evaluate = Callable[..., NDArray[np.generic]]
KINDS = {"bfloat": ml_dtypes.bfloat16, "metal::narrow_float<metal::half_format>": np.float16}
HOST_ONLY = Settings(mode="fast", address_spaces=False)  # clang's unit has no class for half


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_survives_conversion_to_float_and_back(kind: str, evaluate: Evaluate) -> None:
    bits = np.arange(2**16).astype(np.uint16)
    values = bits.view(KINDS[kind]).astype(np.float32)
    results = evaluate(
        ["as_type<uint>(float(as_type<K>(ushort(i))))", "uint(as_type<ushort>(K(x[i])))"],
        np.uint32,
        threads=2**16,
        header=f"typedef {kind} K;\n",
        settings=HOST_ONLY,
        x=values,
    )
    read = np.ascontiguousarray(results[:, 0]).view(np.float32)
    np.testing.assert_array_equal(read, values)
    written = results[:, 1].astype(np.uint16).view(KINDS[kind]).astype(np.float32)
    np.testing.assert_array_equal(written, values)


@pytest.mark.parametrize("kind", KINDS)
def test_floats_are_rounded_to_nearest_even(kind: str, evaluate: Evaluate) -> None:
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 2**32, 20000, dtype=np.uint32)
    near = np.ldexp(rng.standard_normal(20000), rng.integers(-30, 18, 20000)).astype(np.float32)
    halfway = (np.arange(2**12).astype(np.uint32) << 12 | 0x38000000) | 0x8000
    x = np.concatenate([bits.view(np.float32), near, halfway.view(np.float32)])
    results = evaluate(
        ["K(x[i]).bits"],
        np.uint16,
        threads=len(x),
        header=f"typedef {kind} K;\n",
        settings=HOST_ONLY,
        x=x,
    )
    with np.errstate(over="ignore", invalid="ignore"):  # some of the numbers are NaN
        expected = x.astype(KINDS[kind]).astype(np.float32)
        got = np.ascontiguousarray(results[:, 0]).view(KINDS[kind]).astype(np.float32)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_arithmetic_is_rounded_after_every_operation(kind: str, evaluate: Evaluate) -> None:
    rng = np.random.default_rng(6)
    a, b = (rng.standard_normal(512).astype(KINDS[kind]) for _ in range(2))
    setup = (
        "K p = K(x[i]), q = K(z[i]), s = p, t = p, u = p, v = p; s += q; t -= q; u *= q; v /= q;"
    )
    calls = {
        "p + q": a + b,
        "p - q": a - b,
        "p * q": a * b,
        "p / q": a / b,
        "s": a + b,
        "t": a - b,
        "u": a * b,
        "v": a / b,
        "-p": -a,
        "p * 3": a * KINDS[kind](3),
        "1 / p": KINDS[kind](1) / a,
        "p < q ? p : q": np.where(a < b, a, b),
    }
    results = evaluate(
        [f"float({call})" for call in calls],
        threads=512,
        setup=setup,
        header=f"typedef {kind} K;\n",
        settings=HOST_ONLY,
        x=a.astype(np.float32),
        z=b.astype(np.float32),
    )
    for k, (call, expected) in enumerate(calls.items()):
        np.testing.assert_array_equal(results[:, k], expected.astype(np.float32), err_msg=call)


@pytest.mark.parametrize("kind", KINDS)
def test_choices_casts_and_assignments(kind: str, evaluate: Evaluate) -> None:
    setup = """
    K k = K(x[i]), a = k, b = k, c = a++, d = --b;
    K padded = i < 2 ? K(x[i]) : 0;
    float f = k, g = i < 2 ? float(k) : 0.5f;
    f += k;
    int n = int(k);
    n -= k;
    """
    if kind == "bfloat":
        setup = setup.replace("float(k) : ", "k : ")
    calls = {
        "padded": [0, 1, 0, 0],
        "a": [1, 2, 3, 4],
        "b": [-1, 0, 1, 2],
        "c": [0, 1, 2, 3],
        "d": [-1, 0, 1, 2],
        "f": [0, 2, 4, 6],
        "g": [0, 1, 0.5, 0.5],
        "n": [0, 0, 0, 0],
        "k && true ? 1 : 2": [2, 1, 1, 1],
        "!k": [1, 0, 0, 0],
        "k == 1": [0, 1, 0, 0],
        "1 != k": [1, 0, 1, 1],
        "k < 2.5f": [1, 1, 1, 0],
        "k >= K(2)": [0, 0, 1, 1],
        "min(k, K(1))": [0, 1, 1, 1],
    }
    results = evaluate(
        list(calls),
        threads=4,
        setup=setup,
        header=f"typedef {kind} K;\n",
        settings=HOST_ONLY,
        x=np.arange(4, dtype=np.float32),
    )
    for k, (call, expected) in enumerate(calls.items()):
        np.testing.assert_array_equal(results[:, k], expected, err_msg=call)


def test_arithmetic_with_a_float_gives_a_float(evaluate: Evaluate) -> None:
    calls = ["sizeof(bfloat(1) + 1.0f)", "sizeof(2.0f * bfloat(1))", "sizeof(bfloat(1) * 2)"]
    calls += ["sizeof(bfloat(1) + half(1))", "sizeof(half(1) * bfloat(1))", "bfloat(1) + 0.001f"]
    calls += ["half(1) < bfloat(2) && bfloat(2) >= half(2)"]
    results = evaluate(calls, threads=1)
    np.testing.assert_array_equal(results[0], np.array([4, 4, 2, 4, 4, 1.001, 1], np.float32))
