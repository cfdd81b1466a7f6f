from itertools import cycle

import mlx.core as mx
import pytest
from tinyllm_ops import OpSet
from tinyllm_ops.testing import TOLERANCE, assert_close, exact, normal, oracle

WIDTHS = [1, 23, 31, 32, 33, 77, 127, 129, 1023, 1024, 1025]
EACH_WIDTH = list(zip(WIDTHS, cycle(TOLERANCE), strict=False))


def check(metal: OpSet, dtype: mx.Dtype, width: int) -> None:
    x, weight = normal((3, width), dtype, seed=1), normal((width,), dtype, seed=2)
    y = metal.rms_norm(x, weight, 1e-6)
    assert (y.shape, y.dtype) == (x.shape, dtype)
    assert_close(y, oracle.rms_norm(exact(x), exact(weight), 1e-6))


@pytest.mark.parametrize(("width", "dtype"), EACH_WIDTH)
def test_rows_of_any_width(metal: OpSet, dtype: mx.Dtype, width: int) -> None:
    check(metal, dtype, width)


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_of_any_width_and_dtype(metal_checked: OpSet, dtype: mx.Dtype, width: int) -> None:
    check(metal_checked, dtype, width)


def test_rows_that_fill_a_threadgroup_or_have_gaps(metal: OpSet) -> None:
    long, weight = normal((1, 4200), seed=1), normal((4200,), seed=2)
    assert_close(metal.rms_norm(long, weight), oracle.rms_norm(exact(long), exact(weight)))
    x = normal((6, 5, 40), seed=1).swapaxes(0, 1)[:, ::2, 4:36]
    w = weight[: 2 * 32 : 2]
    assert_close(metal.rms_norm(x, w), oracle.rms_norm(exact(x), exact(w)))


def test_empty_inputs_give_empty_outputs(metal: OpSet) -> None:
    assert metal.rms_norm(mx.zeros((0, 8)), mx.ones((8,))).shape == (0, 8)
