from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_layers import MLP, DenseCache, GroupedQueryAttention, RMSNorm, TransformerBlock
from tinyllm_ops import OpSet, Weight
from tinyllm_ops.testing import assert_close, exact, normal, oracle


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("cut", [None, 1, 8])
def test_adds_attention_and_mlp_to_what_flows_by(
    ops: OpSet,
    dtype: mx.Dtype,
    make_attention: Callable[..., GroupedQueryAttention],
    attention_oracle: Callable[..., np.ndarray],
    projection: Callable[..., Weight],
    bits: int | None,
    cut: int | None,
) -> None:
    attention = make_attention(64, 6, 2, 32, biased="qkv", dtype=dtype, bits=bits, ops=ops)
    gate, up = (projection(96, 64, dtype, seed=seed, bits=bits) for seed in (31, 32))
    down = projection(64, 96, dtype, seed=33, bits=bits)
    norms = [RMSNorm(64, normal((64,), dtype, seed=seed), 1e-6, ops=ops) for seed in (34, 35)]
    block = TransformerBlock(attention, MLP(64, 96, gate, up, down, ops=ops), *norms)

    text = normal((2, 9, 64), dtype, seed=36)
    cache = DenseCache()
    chunks = [text] if cut is None else [text[:, :cut], text[:, cut:]]
    y = mx.concatenate([block(chunk, cache) for chunk in chunks], axis=1)

    x = exact(text)
    h = x + attention_oracle(attention, oracle.rms_norm(x, exact(norms[0].weight), 1e-6))
    normed = oracle.rms_norm(h, exact(norms[1].weight), 1e-6)
    gated = oracle.swiglu(oracle.linear(normed, exact(gate)), oracle.linear(normed, exact(up)))
    assert y.dtype == dtype
    assert_close(y, h + oracle.linear(gated, exact(down)))
