from collections.abc import Callable

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from tinyllm_layers import SimpleMultiHeadAttention
from tinyllm_ops import Mask, OpSet, Weight
from tinyllm_ops.testing import assert_close, exact, normal, oracle


def some_mask(kind: str, length: int, keys: int) -> Mask:
    if kind in ("random", "boolean"):
        hidden = np.random.default_rng(9).random((length, keys)) < 0.3
        if kind == "boolean":
            return mx.array(~hidden)
        return mx.array(np.where(hidden, -np.inf, 0.0).astype(np.float32))
    return "causal" if kind == "causal" else None


@pytest.mark.parametrize(("heads", "bits"), [(1, None), (3, None), (3, 8), (40, None)])
@pytest.mark.parametrize(("length", "keys"), [(5, 5), (3, 7), (7, 3), (1, 1)])
@pytest.mark.parametrize("kind", ["none", "causal", "random", "boolean"])
def test_each_head_attends_to_its_visible_keys(
    ops: OpSet,
    dtype: mx.Dtype,
    projection: Callable[..., Weight],
    heads: int,
    bits: int | None,
    length: int,
    keys: int,
    kind: str,
) -> None:
    hidden = 4 * heads if bits is None else 32 * heads
    weights = [projection(hidden, hidden, dtype, seed=i, bits=bits) for i in range(4)]
    mask = some_mask(kind, length, keys)
    inputs = [normal((2, n, hidden), dtype, seed=9 + i) for i, n in enumerate([length, keys, keys])]
    y = SimpleMultiHeadAttention(hidden, heads, *weights, ops=ops)(*inputs, mask)  # type: ignore[call-arg]
    assert y.dtype == dtype
    q, k, v = (
        oracle.linear(exact(x), exact(w)).reshape(2, x.shape[1], heads, -1).swapaxes(1, 2)
        for x, w in zip(inputs, weights[:3], strict=True)
    )
    if kind == "boolean":
        mask = some_mask("random", length, keys)
    out = oracle.attention(q, k, v, mask=exact(mask) if isinstance(mask, mx.array) else mask)
    joined = out.swapaxes(1, 2).reshape(2, length, hidden)
    assert_close(y, oracle.linear(joined, exact(weights[3])))


@pytest.mark.parametrize("masked", [True, False])
def test_equals_mlx_nn(ops: OpSet, masked: bool) -> None:
    theirs = mlx.nn.MultiHeadAttention(24, 3)
    projections = [theirs.query_proj, theirs.key_proj, theirs.value_proj, theirs.out_proj]
    ours = SimpleMultiHeadAttention(24, 3, *(p.weight for p in projections), ops=ops)
    x = normal((2, 7, 24), seed=1)
    mask = theirs.create_additive_causal_mask(7) if masked else None
    assert_close(ours(x, x, x, mask), exact(theirs(x, x, x, mask)))


@pytest.mark.parametrize(("length", "keys"), [(0, 3), (0, 0), (2, 0)])
def test_no_keys_give_zeros(ops: OpSet, length: int, keys: int) -> None:
    weights = [normal((8, 8), seed=i) for i in range(4)]
    kv = mx.ones((2, keys, 8))
    y = SimpleMultiHeadAttention(8, 2, *weights, ops=ops)(mx.ones((2, length, 8)), kv, kv)
    assert_close(y, np.zeros((2, length, 8)))


@pytest.mark.parametrize("heads", [3, 0])
def test_refuses_heads_that_do_not_divide_the_width(heads: int) -> None:
    words = f"num_heads: expected a divisor of hidden_size 8, got {heads}"
    with pytest.raises(ValueError, match=words):
        SimpleMultiHeadAttention(8, heads, *[mx.zeros((8, 8))] * 4)


@pytest.mark.parametrize("wrong", range(4))
def test_refuses_weights_that_are_not_square(wrong: int) -> None:
    weights = [mx.zeros((8, 6 if i == wrong else 8)) for i in range(4)]
    name = ["wq", "wk", "wv", "wo"][wrong]
    with pytest.raises(ValueError, match=rf"{name}: expected shape \(8, 8\), got \(8, 6\)"):
        SimpleMultiHeadAttention(8, 2, *weights)
