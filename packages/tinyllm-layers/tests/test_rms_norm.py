import mlx.core as mx
import mlx.nn
import pytest
from tinyllm_layers import RMSNorm
from tinyllm_ops import OpSet
from tinyllm_ops.testing import assert_close, exact, normal, oracle


@pytest.mark.parametrize("lead", [(), (5,), (2, 3), (2, 1, 3), (0,)])
def test_normalizes_with_its_own_weight_and_eps(
    ops: OpSet, dtype: mx.Dtype, lead: tuple[int, ...]
) -> None:
    weight = normal((37,), dtype, seed=1)
    x = normal((*lead, 37), dtype, seed=2)
    y = RMSNorm(37, weight, 0.25, ops=ops)(x)
    assert y.dtype == dtype
    assert_close(y, oracle.rms_norm(exact(x), exact(weight), 0.25))


def test_equals_mlx_nn_down_to_the_default_eps(ops: OpSet) -> None:
    theirs = mlx.nn.RMSNorm(33)
    theirs.weight = normal((33,), seed=1)
    x = normal((4, 33), seed=2, magnitude=3e-3)  # small enough for eps to count
    assert_close(RMSNorm(33, theirs.weight, ops=ops)(x), exact(theirs(x)))


@pytest.mark.parametrize("shape", [(4,), (1, 3), ()])
def test_refuses_a_weight_that_is_not_a_vector_of_dim(
    unchecked: None, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=r"weight: expected shape \(3,\), got \((4,|1, 3|)\)"):
        RMSNorm(3, mx.zeros(shape))
