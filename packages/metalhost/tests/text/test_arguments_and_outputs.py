"""Inputs and outputs: NumPy, ml_dtypes and MLX arrays, Python numbers, and invalid arguments."""

from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
from metalhost import metal_kernel

SIZES: dict[str, Any] = {"grid": (24, 1, 1), "threadgroup": (8, 1, 1)}
COPY = "uint i = thread_position_in_grid.x; y[i] = x[i];"
X = np.arange(24).reshape(4, 6)
TYPES = ["bool", "float16", "float32", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64))]


@pytest.mark.parametrize("name", [*TYPES, "bfloat16"])
def test_numpy_and_mlx_arrays_of_every_dtype(name: str, host: None) -> None:
    dtype = ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)
    kernel = metal_kernel("copy", ["x"], ["y"], COPY)
    shapes: dict[str, Any] = {"output_shapes": [(6, 4)]}
    x = (X - 3 * (name[:3] != "uin")).astype(dtype)
    (y,) = kernel(inputs=[x], output_dtypes=[dtype], **shapes, **SIZES)
    assert isinstance(y, np.ndarray)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, x.reshape(6, 4))
    of_mlx = mx.array(x.astype(np.float32)).astype(getattr(mx, "bool_" if name == "bool" else name))
    (z,) = kernel(inputs=[of_mlx], output_dtypes=[of_mlx.dtype], **shapes, **SIZES)
    assert isinstance(z, mx.array)
    assert z.dtype == of_mlx.dtype
    assert mx.array_equal(z, of_mlx.reshape(6, 4))


def test_plain_numbers_and_small_arrays(host: None) -> None:
    source = "uint i = thread_position_in_grid.x; y[i] = a + b + (c ? 1 : 0) + d[i % 3] + e;"
    (y,) = metal_kernel("numbers", ["a", "b", "c", "d", "e"], ["y"], source)(
        inputs=[1.5, 2, True, np.array([10, 20, 30], np.int32), np.float16(0.25)],
        output_shapes=[(24,)],
        output_dtypes=["float32"],
        **SIZES,
    )
    np.testing.assert_array_equal(y, np.tile([14.75, 24.75, 34.75], 8))


def test_integers_of_more_than_32_bits(host: None) -> None:
    (y,) = metal_kernel("numbers", ["a", "b"], ["y"], "y[thread_position_in_grid.x] = a - b;")(
        inputs=[2**40, -(2**31) - 1],
        output_shapes=[(24,)],
        output_dtypes=["int64"],
        **SIZES,
    )
    np.testing.assert_array_equal(y, np.full(24, 2**40 + 2**31 + 1))


def test_inputs_that_are_not_row_contiguous(host: None) -> None:
    located = (
        "uint i = thread_position_in_grid.x; y[i] = x[elem_to_loc(i, x_shape, x_strides, x_ndim)];"
    )
    wide = np.arange(96, dtype=np.float32).reshape(8, 12)
    views = [wide[1::2, ::2], wide.T[2:6, 1:7], wide.reshape(4, 24)[:, 3:21:3]]
    for view in views:
        for x in (view, mx.array(wide)[1::2, ::2] if view is views[0] else view):
            (y,) = metal_kernel("strided", ["x"], ["y"], located, ensure_row_contiguous=False)(
                inputs=[x], output_shapes=[(4, 6)], output_dtypes=[np.float32], **SIZES
            )
            np.testing.assert_array_equal(np.array(y), view)
            (y,) = metal_kernel("copied", ["x"], ["y"], COPY)(
                inputs=[x], output_shapes=[(4, 6)], output_dtypes=[np.float32], **SIZES
            )
            np.testing.assert_array_equal(np.array(y), view)


def test_numpy_arrays_with_layouts_that_mlx_lacks(host: None) -> None:
    record = np.zeros(X.shape, [("a", "f4"), ("b", "i1")])
    record["a"] = X
    for x in (X.astype(">f4"), X.astype(">i2"), record["a"]):
        for row_contiguous in (True, False):
            (y,) = metal_kernel("copy", ["x"], ["y"], COPY, ensure_row_contiguous=row_contiguous)(
                inputs=[x], output_shapes=[X.shape], output_dtypes=[np.float32], **SIZES
            )
            np.testing.assert_array_equal(y, X)


def test_empty_inputs_and_outputs(host: None) -> None:
    for dtype in (np.float32, mx.float32):
        (y,) = metal_kernel("empty", ["x"], ["y"], "if (x_shape[0] > 0) y[0] = x[0];")(
            inputs=[np.zeros((0, 3), np.float32)],
            output_shapes=[(2, 0)],
            output_dtypes=[dtype],
            **SIZES,
        )
        assert y.shape == (2, 0)


@pytest.mark.parametrize("name", ["float32", "float16", "int32", "bool"])
def test_outputs_with_an_initial_value(name: str, host: None) -> None:
    source = "uint i = thread_position_in_grid.x; if (i % 2) y[i] = y[i - 1];"
    (y,) = metal_kernel("initialized", [], ["y"], source)(
        inputs=[], output_shapes=[(24,)], output_dtypes=[name], init_value=1, **SIZES
    )
    np.testing.assert_array_equal(y, np.ones(24, name))


def test_bfloat16_outputs_with_an_initial_value(host: None) -> None:
    (y,) = metal_kernel("initialized", [], ["y"], "uint i = thread_position_in_grid.x;")(
        inputs=[], output_shapes=[(24,)], output_dtypes=[mx.bfloat16], init_value=3.14159, **SIZES
    )
    assert isinstance(y, mx.array)
    assert mx.array_equal(y, mx.full((24,), 3.14159, mx.bfloat16))


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_uninitialized_memory_is_nan(name: str, host: None) -> None:
    source = "threadgroup T t[8]; uint i = thread_position_in_grid.x; if (i < 12) y[i] = t[i % 8];"
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    (y,) = metal_kernel("poison", [], ["y"], source)(
        inputs=[],
        output_shapes=[(24,)],
        output_dtypes=[dtype],
        template=[("T", dtype)],
        mode="fast",
        **SIZES,
    )
    assert np.isnan(np.asarray(y, np.float32)).all()


def test_several_outputs(host: None) -> None:
    source = "uint i = thread_position_in_grid.x; y[i] = i; z[i] = T(i) / 2;"
    y, z = metal_kernel("two", [], ["y", "z"], source)(
        inputs=[],
        output_shapes=[(24,), (2, 12)],
        output_dtypes=[np.uint8, np.float16],
        template=[("T", np.float16)],
        **SIZES,
    )
    np.testing.assert_array_equal(y, np.arange(24))
    np.testing.assert_array_equal(z, np.arange(24).reshape(2, 12) / 2)


def test_invalid_arguments_are_rejected(host: None) -> None:
    kernel = metal_kernel("copy", ["x"], ["y"], COPY)
    good: dict[str, Any] = {
        "inputs": [X.astype(np.float32)],
        "output_shapes": [(24,)],
        "output_dtypes": [np.float32],
        **SIZES,
    }
    cases: list[tuple[dict[str, Any], str]] = [
        ({"inputs": []}, r"inputs: expected 1 \(x\), got 0"),
        ({"output_shapes": []}, r"output_shapes: expected 1 \(y\), got 0"),
        ({"output_dtypes": [np.float32] * 2}, r"output_dtypes: expected 1 \(y\), got 2"),
        ({"output_dtypes": ["complex64"]}, "dtype: expected one of .*, got 'complex64'"),
        ({"inputs": [X.astype(np.float64)]}, "dtype: expected one of"),
        ({"mode": "slow"}, "mode: expected 'check' or 'fast', got 'slow'"),
        ({"seed": -1}, "seed: expected 0 to"),
    ]
    for wrong, message in cases:
        with pytest.raises(ValueError, match=message):
            kernel(**{**good, **wrong})
    with pytest.raises(ValueError, match="expected at least one output"):
        metal_kernel("none", ["x"], [], COPY)
    strided = metal_kernel("strided", ["x"], ["y"], COPY, ensure_row_contiguous=False)
    with pytest.raises(ValueError, match="strides: expected none below 0"):
        strided(**{**good, "inputs": [X.astype(np.float32)[::-1]]})
