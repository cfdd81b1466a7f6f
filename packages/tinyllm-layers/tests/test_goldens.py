"""Compare with the layers of transformers, through the file made by tools/goldens/layers.py."""

from pathlib import Path

import mlx.core as mx
import pytest
from tinyllm_layers import (
    MLP,
    Biases,
    DecoderLayer,
    DenseCache,
    GroupedQueryAttention,
    LayerStack,
    RMSNorm,
    RoPE,
)
from tinyllm_layers.testing import run_chunks
from tinyllm_ops import OpSet
from tinyllm_ops.testing import assert_close, exact

GOLDENS = Path(__file__).parent / "goldens" / "layers.safetensors"
HEAD_DIM = {"qwen2": 8, "qwen3": 12, "qwen3_biased": 12}


def tensors_of(case: str) -> dict[str, mx.array]:
    stored = mx.load(str(GOLDENS))
    assert isinstance(stored, dict)
    return {k.removeprefix(f"{case}."): v for k, v in stored.items() if k.startswith(f"{case}.")}


def layer_of(case: str, ops: OpSet) -> DecoderLayer:
    w, dim = tensors_of(case), HEAD_DIM[case]

    def norm(name: str) -> RMSNorm:
        return RMSNorm(32, w[f"{name}.weight"], 1e-6, ops=ops)

    projections = [w[f"self_attn.{name}_proj.weight"] for name in "qkvo"]
    attention = GroupedQueryAttention(
        *(32, 4, 2, dim),
        *projections,
        rope=RoPE(dim, 64, 1e6, ops=ops),
        biases=Biases(*(w.get(f"self_attn.{name}_proj.bias") for name in "qkvo")),
        q_norm=w.get("self_attn.q_norm.weight"),
        k_norm=w.get("self_attn.k_norm.weight"),
        ops=ops,
    )
    mlp = MLP(32, 48, *(w[f"mlp.{name}_proj.weight"] for name in ("gate", "up", "down")), ops=ops)
    return DecoderLayer(norm("input_layernorm"), attention, norm("post_attention_layernorm"), mlp)


@pytest.mark.parametrize("case", HEAD_DIM)
@pytest.mark.parametrize("cut", [0, 1, 6])
def test_attention_equals_that_of_transformers(ops: OpSet, case: str, cut: int) -> None:
    golden, attention, cache = tensors_of(case), layer_of(case, ops).mixer, DenseCache()
    parts = (golden["x"][:, :cut], golden["x"][:, cut:])
    y = mx.concatenate([attention(part, cache=cache) for part in parts], axis=1)
    assert_close(y, exact(golden["attention"]))


@pytest.mark.parametrize("case", HEAD_DIM)
@pytest.mark.parametrize("cut", [0, 1, 6])
def test_layer_equals_the_decoder_layer_of_transformers(ops: OpSet, case: str, cut: int) -> None:
    golden, layers = tensors_of(case), [layer_of(case, ops)]
    x = golden["x"]
    y = run_chunks(LayerStack(layers), x, [DenseCache()], (cut, x.shape[1] - cut))
    assert_close(y, exact(golden["layer"]))
