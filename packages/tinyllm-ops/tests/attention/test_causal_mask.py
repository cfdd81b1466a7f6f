import mlx.core as mx
import numpy as np
import pytest
from tinyllm_ops import causal_mask
from tinyllm_ops.testing import assert_close, exact, oracle

INF = float("inf")


def test_the_worked_example_comes_out(device: mx.Device) -> None:
    assert causal_mask(3, 5).tolist() == [
        [0, 0, 0, -INF, -INF],
        [0, 0, 0, 0, -INF],
        [0, 0, 0, 0, 0],
    ]


@pytest.mark.parametrize("length", [0, 1, 2, 5, 9])
@pytest.mark.parametrize("keys", [0, 1, 2, 5, 9])
def test_lets_each_query_see_the_keys_up_to_its_own(
    device: mx.Device, dtype: mx.Dtype, length: int, keys: int
) -> None:
    mask = causal_mask(length, keys, dtype)
    assert mask.dtype == dtype
    assert_close(mask, oracle.causal_mask(length, keys))
    visible = np.tri(length, keys, keys - length, dtype=np.bool_)
    assert np.array_equal(exact(mask) == 0, visible)


@pytest.mark.parametrize(("length", "keys"), [(-1, 2), (2, -1)])
def test_refuses_lengths_below_0(length: int, keys: int) -> None:
    with pytest.raises(ValueError, match=f"lengths not below 0, got {length}, {keys}"):
        causal_mask(length, keys)
