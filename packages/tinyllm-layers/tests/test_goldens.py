"""Layers against transformers' own, through the file that tools/goldens/layers.py writes."""

from pathlib import Path

import mlx.core as mx
import pytest
from tinyllm_layers import (
    MLP,
    Biases,
    DenseCache,
    GroupedQueryAttention,
    RMSNorm,
    RoPE,
    TransformerBlock,
)
from tinyllm_ops import OpSet
from tinyllm_ops.testing import assert_close, exact

GOLDENS = Path(__file__).parent / "goldens" / "layers.safetensors"
HEAD_DIM = {"qwen2": 8, "qwen3": 12, "qwen3_biased": 12}


def tensors_of(case: str) -> dict[str, mx.array]:
    stored = mx.load(str(GOLDENS))
    assert isinstance(stored, dict)
    return {k.removeprefix(f"{case}."): v for k, v in stored.items() if k.startswith(f"{case}.")}


def block_of(case: str, ops: OpSet) -> TransformerBlock:
    w, dim = tensors_of(case), HEAD_DIM[case]

    def norm(name: str) -> RMSNorm | None:
        weight = w.get(f"{name}.weight")
        return None if weight is None else RMSNorm(weight.size, weight, 1e-6, ops=ops)

    projections = [w[f"self_attn.{name}_proj.weight"] for name in "qkvo"]
    attention = GroupedQueryAttention(
        *(32, 4, 2, dim),
        *projections,
        rope=RoPE(dim, 64, 1e6, ops=ops),
        biases=Biases(*(w.get(f"self_attn.{name}_proj.bias") for name in "qkvo")),
        q_norm=norm("self_attn.q_norm"),
        k_norm=norm("self_attn.k_norm"),
        ops=ops,
    )
    mlp = MLP(32, 48, *(w[f"mlp.{name}_proj.weight"] for name in ("gate", "up", "down")), ops=ops)
    norms = [norm("input_layernorm"), norm("post_attention_layernorm")]
    assert norms[0] is not None
    assert norms[1] is not None
    return TransformerBlock(attention, mlp, norms[0], norms[1])


@pytest.mark.parametrize("case", HEAD_DIM)
@pytest.mark.parametrize("cut", [0, 1, 6])
def test_attention_equals_that_of_transformers(ops: OpSet, case: str, cut: int) -> None:
    golden, attention, cache = tensors_of(case), block_of(case, ops).attention, DenseCache()
    x = golden["x"]
    y = mx.concatenate([attention(x[:, :cut], cache), attention(x[:, cut:], cache)], axis=1)
    assert_close(y, exact(golden["attention"]))


@pytest.mark.parametrize("case", HEAD_DIM)
@pytest.mark.parametrize("cut", [0, 1, 6])
def test_block_equals_the_decoder_layer_of_transformers(ops: OpSet, case: str, cut: int) -> None:
    golden, block, cache = tensors_of(case), block_of(case, ops), DenseCache()
    x = golden["x"]
    y = mx.concatenate([block(x[:, :cut], cache), block(x[:, cut:], cache)], axis=1)
    assert_close(y, exact(golden["layer"]))
