import jaxtyping
import mlx.core as mx
import pytest
import tinyllm_ops
from tinyllm_ops import MLX, REFERENCE, OpSet, PageTable, StateTable


def test_signatures_are_checked_at_run_time_under_pytest(ops: OpSet) -> None:
    with pytest.raises(jaxtyping.TypeCheckError, match="swiglu"):
        ops.swiglu(mx.zeros((2, 3)), mx.zeros((3, 2)))


def test_the_fixture_unchecked_turns_off_the_signature_check(ops: OpSet, unchecked: None) -> None:
    with pytest.raises(ValueError, match=r"up: expected shape \(2, 3\), got \(3, 2\)"):
        ops.swiglu(mx.zeros((2, 3)), mx.zeros((3, 2)))


def test_each_op_of_the_reference_is_public() -> None:
    ops = [op for name, op in vars(REFERENCE).items() if name not in ("name", "norm_rope")]
    public = [getattr(tinyllm_ops, name) for name in tinyllm_ops.__all__]
    assert [op for op in ops if op not in public] == []


def test_two_implementations_share_no_op_that_has_a_fast_form() -> None:
    same = {name for name, op in vars(MLX).items() if op is vars(REFERENCE)[name]}
    scans = {"causal_conv", "gated_delta"}
    assert same == {"argmax", "top_k", "log_probability", "norm_rope", *scans}


@pytest.mark.parametrize("bad", [mx.int32, mx.bool_, mx.complex64])
def test_each_op_refuses_numbers_that_are_not_floating(
    ops: OpSet, bad: mx.Dtype, unchecked: None
) -> None:
    x = mx.ones((1, 1, 2, 4)).astype(bad)
    w = mx.ones((4, 4)).astype(bad)
    pages = PageTable.of([([0], 0, 1)], num_pages=1, page_size=2)
    states = StateTable.rows(1, 4)
    calls = [
        lambda: ops.linear(x, w),
        lambda: ops.expert_linear(x[0, 0], w[None], mx.zeros((2,), mx.int32)),
        lambda: ops.embedding(mx.array([0]), w),
        lambda: ops.softmax(x),
        lambda: ops.swiglu(x, x),
        lambda: ops.rms_norm(x, x[0, 0, 0]),
        lambda: ops.rope(x),
        lambda: ops.attention(x, x, x),
        lambda: ops.paged_attention(x[0, :, :1], x, x, pages),
        lambda: ops.causal_conv(w, w, w[None, :3], states),
        lambda: ops.gated_delta(w[None], w[None], w[None], w, w, w[0], w[0], w[None, None], states),
        lambda: ops.gated_rms_norm(x, x, x[0, 0, 0]),
        lambda: ops.quantize(w),
        lambda: tinyllm_ops.sigmoid(x),
        lambda: tinyllm_ops.silu(x),
        lambda: ops.argmax(x),
        lambda: ops.top_k(x, 1),
        lambda: ops.log_probability(x, mx.zeros((1, 1, 2, 1), mx.int32)),
        lambda: tinyllm_ops.norm_rope(ops, x, None, 1e-6),
        lambda: tinyllm_ops.norm_rope(ops, x, x[0, 0, 0], 1e-6),
        lambda: tinyllm_ops.scaled_dot_product_attention_simple(x, x, x),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"expected float32, float16 or bfloat16, got {bad}"):
            call()  # type: ignore[no-untyped-call]
