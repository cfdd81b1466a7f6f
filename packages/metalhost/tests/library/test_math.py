"""Mathematical functions compared with NumPy in float64, for every floating-point type."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

Evaluate = Callable[..., NDArray[np.generic]]
Float64 = NDArray[np.float64]
# Tolerances, relative to the largest expected number.
TOLERANCE = {"float": 1e-5, "half": 2e-3, "bfloat": 1.6e-2}
DTYPE = {"float": np.float32, "half": np.float16, "bfloat": ml_dtypes.bfloat16}
N = 32


def rounded(values: Float64, kind: str) -> tuple[NDArray[np.generic], Float64]:
    """Round values to a type. Return them in this type and in float64."""
    narrow = values.astype(DTYPE[kind])
    return narrow, narrow.astype(np.float64)


def near(actual: NDArray[np.generic], expected: Float64, kind: str) -> None:
    error = np.abs(actual.astype(np.float64) - expected).max()
    assert error <= TOLERANCE[kind] * np.abs(expected).max()


ANY = np.linspace(-3.9, 3.9, N)
POSITIVE = np.linspace(0.07, 3.9, N)
UNIT = np.linspace(-0.97, 0.97, N)
UNARY: dict[str, tuple[Float64, Callable[[Float64], Float64]]] = {
    "acos": (UNIT, np.arccos),
    "acosh": (1 + POSITIVE, np.arccosh),
    "asin": (UNIT, np.arcsin),
    "asinh": (ANY, np.arcsinh),
    "atan": (ANY, np.arctan),
    "atanh": (UNIT, np.arctanh),
    "ceil": (ANY, np.ceil),
    "cos": (ANY, np.cos),
    "cosh": (ANY, np.cosh),
    "cospi": (ANY, lambda x: np.cos(np.pi * x)),
    "exp": (ANY, np.exp),
    "exp10": (UNIT, lambda x: 10**x),
    "exp2": (ANY, np.exp2),
    "fabs": (ANY, np.abs),
    "floor": (ANY, np.floor),
    "fract": (ANY, lambda x: x - np.floor(x)),
    "log": (POSITIVE, np.log),
    "log10": (POSITIVE, np.log10),
    "log2": (POSITIVE, np.log2),
    "rint": (np.arange(N) / 2 - 8, np.rint),
    "round": (np.arange(N) / 2 - 8, lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x)),
    "rsqrt": (POSITIVE, lambda x: 1 / np.sqrt(x)),
    "saturate": (ANY, lambda x: np.clip(x, 0, 1)),
    "sign": (np.array([-2.0, 0.0, 3.0, -0.5] * 8), np.sign),
    "sin": (ANY, np.sin),
    "sinh": (ANY, np.sinh),
    "sinpi": (ANY, lambda x: np.sin(np.pi * x)),
    "sqrt": (POSITIVE, np.sqrt),
    "tan": (UNIT, np.tan),
    "tanh": (ANY, np.tanh),
    "tanpi": (UNIT / 4, lambda x: np.tan(np.pi * x)),
    "trunc": (ANY, np.trunc),
}
OTHER = np.array([0.5, -1.25, 2.0, 3.5] * 8)
BINARY: dict[str, tuple[Float64, Callable[[Float64, Float64], Float64]]] = {
    "atan2": (ANY, np.arctan2),
    "copysign": (ANY, np.copysign),
    "divide": (ANY, np.divide),
    "fdim": (ANY, lambda x, y: np.maximum(x - y, 0)),
    "fmax": (ANY, np.maximum),
    "fmin": (ANY, np.minimum),
    "fmod": (np.arange(N) / 4 - 4, np.fmod),
    "max": (ANY, np.maximum),
    "min": (ANY, np.minimum),
    "pow": (POSITIVE, np.power),
    "powr": (POSITIVE, np.power),
    "step": (ANY, lambda edge, x: (x >= edge).astype(np.float64)),
}


@pytest.mark.parametrize("kind", ["float", "half", "bfloat"])
def test_functions_of_one_argument(kind: str, evaluate: Evaluate) -> None:
    inputs = {f"x_{name}": rounded(values, kind)[0] for name, (values, _) in UNARY.items()}
    halves = list(UNARY)[:16], list(UNARY)[16:]  # Metal binds 31 buffers
    for names in halves:
        chosen = {f"x_{name}": inputs[f"x_{name}"] for name in names}
        vectors = [f"{name}(vec<{kind}, 3>(x_{name}[i], 1, 0)).x" for name in names]
        results = evaluate(
            [f"{name}(x_{name}[i])" for name in names] + vectors, DTYPE[kind], **chosen
        )
        for k, name in enumerate(names):
            values, function = UNARY[name]
            expected = function(rounded(values, kind)[1])
            near(results[:, k], expected, kind)
            near(results[:, len(names) + k], expected, kind)


@pytest.mark.parametrize("kind", ["float", "half", "bfloat"])
def test_functions_of_two_arguments(kind: str, evaluate: Evaluate) -> None:
    inputs = {f"x_{name}": rounded(values, kind)[0] for name, (values, _) in BINARY.items()}
    second, exact = rounded(OTHER, kind)
    vectors = [
        f"{name}(vec<{kind}, 2>(1, x_{name}[i]), vec<{kind}, 2>(1, other[i])).y" for name in BINARY
    ]
    calls = [f"{name}(x_{name}[i], other[i])" for name in BINARY]
    results = evaluate(calls + vectors, DTYPE[kind], other=second, **inputs)
    for k, (values, function) in enumerate(BINARY.values()):
        expected = function(rounded(values, kind)[1], exact)
        near(results[:, k], expected, kind)
        near(results[:, len(BINARY) + k], expected, kind)


@pytest.mark.parametrize("kind", ["float", "half", "bfloat"])
def test_functions_of_three_arguments(kind: str, evaluate: Evaluate) -> None:
    (a, x), (b, y), (c, z) = (rounded(v, kind) for v in (ANY, OTHER, POSITIVE))
    calls = {
        "fma(a[i], b[i], c[i])": x * y + z,
        f"fma(vec<{kind}, 2>(a[i]), vec<{kind}, 2>(b[i]), vec<{kind}, 2>(c[i])).y": x * y + z,
        "mix(a[i], b[i], c[i])": x + (y - x) * z,
        f"mix(vec<{kind}, 2>(a[i]), vec<{kind}, 2>(b[i]), c[i]).y": x + (y - x) * z,
        f"clamp(a[i], {kind}(-1), c[i])": np.minimum(np.maximum(x, -1), z),
        f"clamp(vec<{kind}, 2>(a[i]), {kind}(-1), c[i]).y": np.minimum(np.maximum(x, -1), z),
        "min3(a[i], b[i], c[i])": np.minimum(x, np.minimum(y, z)),
        "max3(a[i], b[i], c[i])": np.maximum(x, np.maximum(y, z)),
        "median3(a[i], b[i], c[i])": np.median(np.stack([x, y, z]), axis=0),
        "abs(a[i])": np.abs(x),
        f"abs(vec<{kind}, 4>(a[i])).w": np.abs(x),
    }
    results = evaluate(list(calls), DTYPE[kind], a=a, b=b, c=c)
    for k, expected in enumerate(calls.values()):
        near(results[:, k], expected, kind)


def test_functions_with_a_second_result(evaluate: Evaluate) -> None:
    x = np.linspace(-7.9, 7.7, N).astype(np.float32)
    fraction, exponent = np.frexp(x)
    part, whole = np.modf(x)
    setup = "int e; float w, c; float f = frexp(x[i], e), m = modf(x[i], w), s = sincos(x[i], c);"
    calls = {
        "f": fraction,
        "e": exponent,
        "m": part,
        "w": whole,
        "s": np.sin(x),
        "c": np.cos(x),
        "ldexp(x[i], 3)": x * 8,
        "ilogb(x[i])": np.floor(np.log2(np.abs(x))),
        "smoothstep(-2.0, 2.0, x[i])": (t := np.clip((x + 2) / 4, 0, 1)) * t * (3 - 2 * t),
        "nextafter(x[i], 9.0) - x[i]": np.nextafter(x, np.float32(9)) - x,
    }
    results = evaluate(list(calls), setup=setup, x=x)
    for k, expected in enumerate(calls.values()):
        near(results[:, k], expected.astype(np.float64), "float")
    assert np.all(results[:, -1] > 0)


def test_small_halves(evaluate: Evaluate) -> None:
    x = np.array([6e-8, 6.2e-5, 0, -0.0, -6.2e-5, np.inf, np.nan, 1] * 4, np.float16)
    calls = ["isnormal(x[i])", "isnormal(half2(x[i])).y", "fract(half(-1e-7f))"]
    results = evaluate(calls, np.float16, x=x)
    for k in range(2):
        np.testing.assert_array_equal(results[:, k], [0, 1, 0, 0, 1, 0, 0, 1] * 4)
    np.testing.assert_array_equal(results[:, 2], np.nextafter(np.float16(1), np.float16(0)))


def test_halves_next_to_each_other(evaluate: Evaluate) -> None:
    special = [0, -0.0, 1, -1, 6e-8, -6e-8, 65504, -65504, np.inf, -np.inf, np.nan]
    x, y = np.array([[a, b] for a in special for b in special], np.float16).T
    results = evaluate(["nextafter(x[i], z[i])"], np.float16, threads=len(x), x=x, z=y)
    with np.errstate(over="ignore"):  # the number after the largest one is infinite
        expected = np.where(x == y, y, np.nextafter(x, y))
    np.testing.assert_array_equal(results[:, 0], expected)
    np.testing.assert_array_equal(np.signbit(results[:, 0]), np.signbit(expected))


def test_functions_of_halves_with_a_second_result(evaluate: Evaluate) -> None:
    x = np.linspace(-7.9, 7.7, N).astype(np.float16)
    exact = x.astype(np.float64)
    setup = "half w, c; int e; half m = modf(x[i], w), f = frexp(x[i], e), s = sincos(x[i], c);"
    calls = {"m": np.modf(exact)[0], "w": np.modf(exact)[1], "f": np.frexp(exact)[0]}
    calls |= {"s": np.sin(exact), "c": np.cos(exact), "ldexp(f, e)": exact}
    results = evaluate(list(calls), np.float16, setup=setup, x=x)
    for k, expected in enumerate(calls.values()):
        near(results[:, k], expected, "half")
    setup = "int e; bfloat b = frexp(bfloat(float(x[i])), e); b = ldexp(nextafter(b, b), e);"
    results = evaluate(["b"], setup=setup, x=x)
    near(results[:, 0], exact, "bfloat")


def test_log1p_of_mlx(evaluate: Evaluate) -> None:
    x = np.array([1e-20, -0.5, 0.0, 3.0] * 8, np.float32)
    setup = "bfloat16_t b = log1p(bfloat16_t(x[i]));"
    results = evaluate(["log1p(x[i])", "log1p(half(x[i]))", "float(b)"], setup=setup, x=x)
    for k, kind in enumerate(DTYPE):
        near(results[:, k], np.log1p(x.astype(np.float64)), kind)
    assert results[0, 0] == x[0]


def test_classification_of_numbers(evaluate: Evaluate) -> None:
    x = np.array([0.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -0.0, 2.0] * 4, np.float32)
    normal = np.isfinite(x) & (np.abs(x) >= np.finfo(np.float32).tiny)
    calls = {
        "isfinite": np.isfinite(x),
        "isinf": np.isinf(x),
        "isnan": np.isnan(x),
        "isnormal": normal,
        "signbit": np.signbit(x),
    }
    scalars = [f"{name}(x[i])" for name in calls]
    vectors = [f"{name}(float4(x[i])).w" for name in calls]
    narrow = [f"{name}(bfloat(x[i]))" for name in calls]
    results = evaluate(scalars + vectors + narrow, np.bool_, x=x)
    for k, expected in enumerate(calls.values()):
        np.testing.assert_array_equal(results[:, k], expected)
        np.testing.assert_array_equal(results[:, len(calls) + k], expected)


@pytest.mark.parametrize("space", ["metal", "fast", "precise", "metal::fast", "metal::precise"])
def test_namespaces_of_the_library(space: str, evaluate: Evaluate) -> None:
    results = evaluate([f"{space}::exp(float(i))", f"{space}::max(float(i), 3.0)"], threads=8)
    near(results[:, 0], np.exp(np.arange(8.0)), "float")


def test_numeric_limits(evaluate: Evaluate) -> None:
    calls: dict[str, float] = {}
    for kind, dtype in DTYPE.items():
        info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]  # no annotations
        calls |= {
            f"numeric_limits<{kind}>::max()": float(info.max),
            f"numeric_limits<{kind}>::lowest()": float(info.min),
            f"numeric_limits<{kind}>::min()": float(info.tiny),
            f"numeric_limits<{kind}>::epsilon()": float(info.eps),
            f"numeric_limits<{kind}>::infinity()": np.inf,
            f"numeric_limits<{kind}>::quiet_NaN()": np.nan,
            f"numeric_limits<{kind}>::digits": info.nmant + 1,
            f"Limits<{kind}>::max": np.inf,
            f"Limits<{kind}>::min": -np.inf,
            f"Limits<{kind}>::finite_max": float(info.max),
            f"Limits<{kind}>::finite_min": float(info.min),
        }
    results = evaluate([f"float({call})" for call in calls], threads=1)
    np.testing.assert_array_equal(results[0], np.array(list(calls.values()), np.float32))


def test_literals_and_constants(evaluate: Evaluate) -> None:
    calls: dict[str, float] = {
        "1.5h": 1.5,
        "2.5bf": 2.5,
        "0.1": float(np.float32(0.1)),
        "1e-3": float(np.float32(1e-3)),
        "sizeof(1.0)": 4,
        "M_PI_F": np.pi,
        "M_E_F": np.e,
        "M_LOG2E_F": np.log2(np.e),
        "M_LN2_F": np.log(2),
        "M_SQRT2_F": np.sqrt(2),
        "INFINITY": np.inf,
        "-INFINITY": -np.inf,
        "HALF_MAX": 65504,
        "FLT_MAX": float(np.finfo(np.float32).max),
        "NAN": np.nan,
    }
    results = evaluate(list(calls), threads=1)
    np.testing.assert_array_equal(results[0], np.array(list(calls.values()), np.float32))
