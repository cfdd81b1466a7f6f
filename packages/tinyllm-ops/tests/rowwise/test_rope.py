import math
from typing import Any

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tinyllm_ops import MLX, OpSet, Positions, Yarn, rope
from tinyllm_ops.rotary_frequencies import rotary_frequencies
from tinyllm_ops.testing import OPSETS, TOLERANCE, assert_close, exact, normal, oracle

WAYS = pytest.mark.parametrize("traditional", [False, True])


@WAYS
@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 5, 3, 8), (3, 4, 40, 10), (1, 33, 2, 64)])
@pytest.mark.parametrize("base", [100.0, 10_000.0, 1_000_000.0])
def test_turns_each_pair_by_position_times_frequency(
    ops: OpSet, dtype: mx.Dtype, shape: tuple[int, ...], base: float, traditional: bool
) -> None:
    x = normal(shape, dtype, seed=1)
    y = ops.rope(x, slice(None), base, traditional)
    assert y.dtype == dtype
    assert_close(y, oracle.rope(exact(x), np.arange(shape[1]), base, traditional))


# Each form of `positions` for two rows of three tokens, and the same positions as integers.
PLACES: list[tuple[Positions, list[list[int]]]] = [
    (slice(None), [[0, 1, 2]] * 2),
    (slice(3), [[0, 1, 2]] * 2),
    (slice(5, 8), [[5, 6, 7]] * 2),
    (slice(5, None, 1), [[5, 6, 7]] * 2),
    (mx.array([9, 2, 2]), [[9, 2, 2]] * 2),
    (mx.array([[9, 2, 4]]), [[9, 2, 4]] * 2),
    (mx.array([[0, 5, 1], [30, 2, 2]]), [[0, 5, 1], [30, 2, 2]]),
    (mx.array([[0, 5, 1], [30, 2, 2]], dtype=mx.uint32), [[0, 5, 1], [30, 2, 2]]),
    (mx.array([3, 4, 5], dtype=mx.int64), [[3, 4, 5]] * 2),
]


@WAYS
@pytest.mark.parametrize(("positions", "where"), PLACES)
def test_takes_positions_as_slices_or_integers(
    ops: OpSet, dtype: mx.Dtype, positions: Positions, where: list[list[int]], traditional: bool
) -> None:
    x = normal((2, 3, 4, 16), dtype, seed=1)
    y = ops.rope(x, positions, 10_000.0, traditional)
    assert_close(y, oracle.rope(exact(x), np.array(where), 10_000.0, traditional))


def test_the_worked_example_comes_out(ops: OpSet) -> None:
    # D = 4 and base = 100 give the second pair, features 1 and 3, the frequency 0.1.
    x = mx.array([0.0, 1.0, 0.0, 0.5]).reshape(1, 1, 1, 4)
    one, three = (ops.rope(x, slice(p, p + 1), 100.0)[0, 0, 0] for p in (1, 3))
    assert [one[1].item(), one[3].item()] == pytest.approx([0.945, 0.597], abs=1e-3)
    assert [three[1].item(), three[3].item()] == pytest.approx([0.807, 0.774], abs=1e-3)
    assert mx.inner(one, three).item() == pytest.approx(1.225, abs=1e-3)


@WAYS
@given(m=st.integers(0, 500), n=st.integers(0, 500), shift=st.integers(0, 500))
def test_products_depend_on_the_difference_of_positions_alone(
    traditional: bool, m: int, n: int, shift: int
) -> None:
    q, k = (normal((1, 1, 1, 32), seed=seed) for seed in (1, 2))
    for opset in OPSETS:

        def product(a: int, b: int, opset: OpSet = opset) -> float:
            turned = opset.rope(q, slice(a, a + 1), 1e4, traditional)
            other = opset.rope(k, slice(b, b + 1), 1e4, traditional)
            return float((turned * other).sum().item())  # type: ignore[arg-type]

        assert product(m, n) == pytest.approx(product(m + shift, n + shift), abs=2e-3)


@given(
    shape=st.tuples(*[st.integers(0, 5)] * 3, st.integers(0, 20).map(lambda half: 2 * half)),
    start=st.integers(0, 100),
    traditional=st.booleans(),
    form=st.sampled_from(["slice", "array"]),
    opset=st.sampled_from(OPSETS),
    dtype=st.sampled_from(list(TOLERANCE)),
)
@settings(max_examples=60)
def test_takes_any_shape(
    shape: tuple[int, int, int, int],
    start: int,
    traditional: bool,
    form: str,
    opset: OpSet,
    dtype: mx.Dtype,
) -> None:
    length = shape[1]
    x = normal(shape, dtype, seed=1)
    row = slice(start, start + length)
    positions: Positions = {  # type: ignore[assignment]
        "slice": row,
        "array": mx.arange(start, start + length),
    }[form]
    y = opset.rope(x, positions, 10_000.0, traditional)
    where = np.arange(start, start + length)
    assert_close(y, oracle.rope(exact(x), where, 10_000.0, traditional))


@WAYS
@pytest.mark.parametrize("base", [10_000.0, 1_000_000.0])
@pytest.mark.parametrize("last", [4_095, 32_767, 131_071])
def test_errs_at_large_positions_by_no_more_than_float32_angles_do(
    ops: OpSet, device: mx.Device, last: int, base: float, traditional: bool
) -> None:
    """The error of the angle p f is at most p f (3 |ln f| + 4) u, with u = 2^-24.

    f is computed as exp(y) with y = ln f. Three roundings, of log(base), of its division by D/2 and
    of the product with i, change y by up to 3 |y| u, and f by the same relative amount. exp has an
    error of 3 u, and the product p f of u. A position below 2^24 is exact. The pair (a, b) moves by
    its length times the error of the angle.
    Measured on a CPU: up to 1.7e-3 radians at 32,767 and 5.5e-3 at 131,071, under half the bound.
    """
    # MLX documents no bound for its Metal kernel. The reference must keep the bound on any GPU.
    if ops is MLX and device.type == mx.gpu:
        pytest.skip("MLX's Metal kernel takes fast sine and cosine, with no word on large angles")
    x = normal((1, 2, 2, 128), seed=1)
    where = np.array([last - 1, last])
    y = exact(ops.rope(x, mx.array(where), base, traditional))
    wanted = oracle.rope(exact(x), where, base, traditional)
    f = base ** -(np.arange(64) / 64)
    angle = where[:, None, None] * f * (3 * abs(np.log(f)) + 4) * 2.0**-24
    a, b = pairs(exact(x), traditional)
    limit = np.hypot(a, b) * angle + TOLERANCE[mx.float32] * abs(wanted).max()
    for error in pairs(abs(y - wanted), traditional):
        assert (error <= limit).all(), f"{(error - limit).max()} too far"
    assert limit.max() < 0.15  # a bound that a wrong frequency would fail


def pairs(x: np.ndarray, traditional: bool) -> tuple[np.ndarray, np.ndarray]:
    half = x.shape[-1] // 2
    return (x[..., 0::2], x[..., 1::2]) if traditional else (x[..., :half], x[..., half:])


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_angles_are_float32_whatever_the_dtype(ops: OpSet, dtype: mx.Dtype) -> None:
    # Position 1,001 would be rounded to 1,000 in bfloat16, and 4,097 to 4,096 in float16.
    x = normal((1, 1, 2, 16), dtype, seed=1)
    for position in (1_001, 4_097):
        y = ops.rope(x, slice(position, position + 1))
        assert_close(y, oracle.rope(exact(x), np.array([position])))


@pytest.mark.parametrize("magnitude", [1e-4, 1e4])
def test_keeps_its_precision_up_to_the_limits_of_float16(
    ops: OpSet, dtype: mx.Dtype, magnitude: float
) -> None:
    x = normal((2, 5, 3, 16), dtype, seed=1, magnitude=magnitude)
    assert_close(ops.rope(x), oracle.rope(exact(x), np.arange(5)))


@WAYS
def test_equals_mlx_nn_in_float32(ops: OpSet, traditional: bool) -> None:
    x = normal((2, 5, 3, 16), seed=1)
    layer = mlx.nn.RoPE(16, traditional=traditional, base=500.0)
    heads_first = layer(x.swapaxes(1, 2), offset=7).swapaxes(1, 2)
    assert_close(ops.rope(x, slice(7, 12), 500.0, traditional), exact(heads_first))


@WAYS
@pytest.mark.parametrize("scaling", [None, Yarn(4.0, 32)], ids=["plain", "yarn"])
@pytest.mark.parametrize(("head_dim", "dims"), [(16, 4), (16, 16), (256, 64), (7, 4)])
def test_rotates_the_first_features_alone(
    ops: OpSet,
    dtype: mx.Dtype,
    head_dim: int,
    dims: int,
    scaling: Yarn | None,
    traditional: bool,
) -> None:
    x = normal((2, 3, 4, head_dim), dtype, seed=1)
    y = ops.rope(x, slice(5, 8), 1e7, traditional, scaling, dims)
    assert (y.shape, y.dtype) == (x.shape, dtype)
    expected = oracle.rope(exact(x), np.arange(5, 8), 1e7, traditional, scaling, dims)
    assert_close(y, expected)
    assert mx.array_equal(y[..., dims:], x[..., dims:])


@pytest.mark.parametrize("dims", [3, 0, -2, 10])
def test_refuses_a_number_of_features_that_a_head_cannot_rotate(ops: OpSet, dims: int) -> None:
    with pytest.raises(ValueError, match=f"dims: expected an even number from 2 to 8, got {dims}"):
        ops.rope(X, dims=dims)


X = mx.zeros((2, 3, 4, 8))


@pytest.mark.parametrize(
    ("x", "positions", "base", "words"),
    [
        (X[0], slice(None), 1e4, r"x: expected axes B L H D, got shape \(3, 4, 8\)"),
        (X[..., :7], slice(None), 1e4, r"x: expected an even head dim D to pair, got 7"),
        (X, slice(None), 0.0, r"base: expected a number above 0, got 0.0"),
        (X, slice(None), math.nan, r"base: expected a number above 0, got nan"),
        (X, slice(0, 4), 1e4, r"expected a slice of 3 positions, got slice\(0, 4, None\)"),
        (X, slice(-3, 0), 1e4, r"expected a slice of 3 positions, got slice\(-3, 0, None\)"),
        (X, slice(0, 6, 2), 1e4, r"expected a slice of 3 positions, got slice\(0, 6, 2\)"),
        (X, slice(2**31 - 2, None), 1e4, r"positions: expected numbers of 31 bits, got slice"),
        (X, mx.arange(4), 1e4, r"expected shape \(3,\) or \(2, 3\), got \(4,\)"),
        (X, mx.zeros((3, 3), mx.int32), 1e4, r"expected shape \(3,\) or \(2, 3\), got \(3, 3\)"),
        (X, mx.zeros(3), 1e4, r"positions: expected an integer dtype, got .*float32"),
        (X, mx.array(3), 1e4, r"positions: expected shape \(3,\) or \(2, 3\), got \(\)"),
        (X, 3, 1e4, r"positions: expected a slice .*, got 3: `slice\(3, 3 \+ L\)` starts at 3"),
        (X, [0, 1], 1e4, r"positions: expected a slice or an integer array, got \[0, 1\]"),
        (X, [slice(0, 3)] * 2, 1e4, r"positions: expected a slice or .*, got \[slice\(0, 3, None"),
        (X, np.arange(3), 1e4, r"positions: expected a slice or an integer array, got array\(\["),
        (X, "012", 1e4, r"positions: expected a slice or an integer array, got '012'"),
        (X, None, 1e4, r"positions: expected a slice or an integer array, got None"),
    ],
)
def test_refuses_arguments_that_do_not_fit(
    ops: OpSet, unchecked: None, x: mx.array, positions: Positions, base: float, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        ops.rope(x, positions, base)


def test_starts_at_position_0_in_qwens_pairing(device: mx.Device) -> None:
    x = normal((1, 4, 2, 8), seed=1)
    assert_close(rope(x), oracle.rope(exact(x), np.arange(4), 10_000.0, traditional=False))


YARNS = [
    Yarn(4.0, 32_768),  # Qwen's own, with base 1,000,000
    Yarn(2.0, 4096, attention_factor=1.0),
    Yarn(8.0, 2048, beta_fast=16.0, beta_slow=2.0, truncate=False),
    Yarn(1.0, 32_768),
    Yarn(40.0, 1),  # the whole head turns slowly: the ramp has no width
]


@WAYS
@pytest.mark.parametrize("scaling", YARNS, ids=str)
def test_yarn_stretches_the_slow_pairs(
    ops: OpSet, dtype: mx.Dtype, scaling: Yarn, traditional: bool
) -> None:
    x = normal((2, 9, 3, 64), dtype, seed=1)
    y = ops.rope(x, slice(5, 14), 1e6, traditional, scaling)
    assert y.dtype == dtype
    expected = oracle.rope(exact(x), np.arange(5, 14), 1e6, traditional, scaling)
    assert_close(y, expected, position=14)


@pytest.mark.parametrize("start", [32_768, 131_064, 1_048_568])
@pytest.mark.parametrize("scaling", [None, Yarn(4.0, 32_768)], ids=["plain", "yarn"])
def test_far_positions_are_as_exact_as_an_angle_in_float32(
    ops: OpSet, dtype: mx.Dtype, scaling: Yarn | None, start: int
) -> None:
    x = normal((1, 8, 2, 128), dtype, seed=1)
    y = ops.rope(x, slice(start, start + 8), 1e6, False, scaling)
    expected = oracle.rope(exact(x), np.arange(start, start + 8), 1e6, False, scaling)
    assert_close(y, expected, position=start + 8)


def test_yarn_leaves_fast_pairs_and_slows_slow_ones_by_the_whole_factor() -> None:
    scaling = Yarn(4.0, 32_768)
    plain = np.array(rotary_frequencies(128, 1e6, None))
    slowed = np.array(rotary_frequencies(128, 1e6, scaling))
    turns = 32_768 * plain / (2 * math.pi)
    assert (slowed[turns > 40] == plain[turns > 40]).all()
    assert slowed[turns < 0.8] == pytest.approx(plain[turns < 0.8] / 4)
    assert (np.diff(slowed) < 0).all()
    assert scaling.magnitude == pytest.approx(1.1386, abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"factor": 0.5}, "factor: expected a number from 1, got 0.5"),
        ({"factor": math.nan}, "factor: expected a number from 1, got nan"),
        ({"original_max_position_embeddings": 0}, "expected at least 1, got 0"),
        ({"beta_fast": 1.0, "beta_slow": 2.0}, "expected 0 < beta_slow <= beta_fast"),
        ({"attention_factor": -1.0}, "attention_factor: expected a number above 0, got -1.0"),
    ],
)
def test_invalid_settings_of_yarn_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Yarn(**({"factor": 4.0, "original_max_position_embeddings": 32} | settings))


def test_yarn_has_no_ramp_for_a_base_of_one(ops: OpSet) -> None:
    with pytest.raises(ValueError, match="base: expected a number above 1 for YaRN, got 1"):
        ops.rope(mx.zeros((1, 1, 1, 4)), slice(None), 1.0, False, Yarn(4.0, 32))
