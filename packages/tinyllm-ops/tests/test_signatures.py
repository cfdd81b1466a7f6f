import jaxtyping
import mlx.core as mx
import pytest
import tinyllm_ops
from tinyllm_ops import OpSet


def test_signatures_are_checked_at_run_time_under_pytest(ops: OpSet) -> None:
    with pytest.raises(jaxtyping.TypeCheckError, match="swiglu"):
        ops.swiglu(mx.zeros((2, 3)), mx.zeros((3, 2)))


def test_the_fixture_unchecked_lets_the_contract_speak(ops: OpSet, unchecked: None) -> None:
    with pytest.raises(ValueError, match=r"up: expected shape \(2, 3\), got \(3, 2\)"):
        ops.swiglu(mx.zeros((2, 3)), mx.zeros((3, 2)))


def test_every_public_name_exists() -> None:
    assert [name for name in tinyllm_ops.__all__ if not hasattr(tinyllm_ops, name)] == []


@pytest.mark.parametrize("bad", [mx.int32, mx.bool_, mx.complex64])
def test_each_op_refuses_numbers_that_are_not_floating(
    ops: OpSet, bad: mx.Dtype, unchecked: None
) -> None:
    x = mx.ones((1, 1, 2, 4)).astype(bad)
    w = mx.ones((4, 4)).astype(bad)
    ids = mx.zeros((1,), mx.int32)
    calls = [
        lambda: ops.linear(x, w),
        lambda: ops.embedding(mx.array([0]), w),
        lambda: ops.softmax(x),
        lambda: ops.silu(x),
        lambda: ops.swiglu(x, x),
        lambda: ops.rms_norm(x, x[0, 0, 0]),
        lambda: ops.rope(x),
        lambda: ops.attention(x, x, x),
        lambda: ops.paged_attention(x[0], x, x, ids[None], ids, ids[:0]),
        lambda: ops.quantize(w),
        lambda: tinyllm_ops.sigmoid(x),
        lambda: tinyllm_ops.scaled_dot_product_attention_simple(x, x, x),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"expected float32, float16 or bfloat16, got {bad}"):
            call()
