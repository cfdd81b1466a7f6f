"""Integer functions, compared exactly."""

from collections.abc import Callable, Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

Evaluate = Callable[..., NDArray[np.generic]]
VALUES = [0, 1, 2, 3, 5, 7, 8, 0x55, 0x80, 0xFF, -1, -2, -128, 0x7F, 100, -100]
TYPES = ["char", "uchar", "short", "ushort", "int", "uint", "long", "ulong"]


def dtype_of(kind: str) -> np.dtype[np.integer]:
    size = {"char": 8, "short": 16, "int": 32, "long": 64}[kind.removeprefix("u")]
    return np.dtype(f"{'u' * kind.startswith('u')}int{size}")


@pytest.mark.parametrize("kind", TYPES)
def test_integer_functions(kind: str, evaluate: Evaluate) -> None:
    dtype = dtype_of(kind)
    bits = dtype.itemsize * 8
    info = np.iinfo(dtype)
    low, high = int(info.min), int(info.max)

    def wrap(n: int) -> int:
        return (n - low) % 2**bits + low

    x = np.array([wrap(v) for v in VALUES] + [low, high, 0, 1], dtype)
    y = np.roll(x, 3)
    pairs = [(int(a), int(b)) for a, b in zip(x, y, strict=True)]
    unsigned = [a % 2**bits for a, _ in pairs]
    field = [u >> 3 & 0xF for u in unsigned]
    signed_field = [f - 16 if low < 0 and f & 8 else f for f in field]
    calls = {
        "popcount(x[i])": [u.bit_count() for u in unsigned],
        "clz(x[i])": [bits - u.bit_length() for u in unsigned],
        "ctz(x[i])": [(u & -u).bit_length() - 1 if u else bits for u in unsigned],
        "reverse_bits(x[i])": [wrap(int(f"{u:0{bits}b}"[::-1], 2)) for u in unsigned],
        f"rotate(x[i], {kind}(5))": [wrap(u << 5 | u >> (bits - 5)) for u in unsigned],
        f"rotate(x[i], {kind}(0))": [a for a, _ in pairs],
        "extract_bits(x[i], 3u, 4u)": signed_field,
        "extract_bits(x[i], 3u, 0u)": [0] * len(x),
        "insert_bits(x[i], y[i], 2u, 3u)": [
            wrap(a & ~0b11100 | (b & 0b111) << 2) for a, b in pairs
        ],
        "absdiff(x[i], y[i])": [wrap(abs(a - b)) for a, b in pairs],
        "addsat(x[i], y[i])": [min(max(a + b, low), high) for a, b in pairs],
        "subsat(x[i], y[i])": [min(max(a - b, low), high) for a, b in pairs],
        "hadd(x[i], y[i])": [(a + b) >> 1 for a, b in pairs],
        "rhadd(x[i], y[i])": [(a + b + 1) >> 1 for a, b in pairs],
        "min(x[i], y[i])": [min(pair) for pair in pairs],
        "max(x[i], y[i])": [max(pair) for pair in pairs],
        "min3(x[i], y[i], x[0])": [min(*pair, int(x[0])) for pair in pairs],
        "max3(x[i], y[i], x[0])": [max(*pair, int(x[0])) for pair in pairs],
        "median3(x[i], y[i], x[0])": [sorted([*pair, int(x[0])])[1] for pair in pairs],
        "clamp(x[i], x[1], x[4])": [min(max(a, 1), 5) for a, _ in pairs],
        "select(x[i], y[i], x[i] < y[i])": [b if a < b else a for a, b in pairs],
        "numeric_limits<K>::max()": [high] * len(x),
        "numeric_limits<K>::min()": [low] * len(x),
        "numeric_limits<K>::lowest()": [low] * len(x),
        "as_type<K>(x[i])": [a for a, _ in pairs],
    }
    header = f"typedef {kind} K;\n"
    expressions = [call.replace("y[", "z[") for call in calls]  # y is the output
    results = evaluate(expressions, dtype, threads=len(x), header=header, x=x, z=y)
    for k, (call, expected) in enumerate(calls.items()):
        np.testing.assert_array_equal(results[:, k], np.array(expected, dtype), err_msg=call)


def test_mulhi_and_abs(evaluate: Evaluate) -> None:
    a = np.array([2**31 - 1, -(2**31), 123456789, -5], np.int64)
    b = np.array([-(2**31), -(2**31), 987654321, 7], np.int64)
    calls: dict[str, Iterable[int]] = {
        "mulhi(a[i], b[i])": (a * b) >> 32,
        "abs(max(a[i], -5))": np.abs(np.maximum(a, -5)),
        "int(mulhi(uint(a[i]), uint(b[i])))": [
            (int(x) % 2**32 * (int(y) % 2**32)) >> 32 for x, y in zip(a, b, strict=True)
        ],
    }
    results = evaluate(list(calls), np.int32, threads=4, a=a.astype(np.int32), b=b.astype(np.int32))
    for k, expected in enumerate(calls.values()):
        wrapped = np.array([int(v) for v in expected], np.int64).astype(np.int32)
        np.testing.assert_array_equal(results[:, k], wrapped)
