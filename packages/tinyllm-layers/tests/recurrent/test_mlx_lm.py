"""Compare with the layers of mlx-lm, with random weights in float32."""

from itertools import pairwise
from types import ModuleType
from typing import Any, cast

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from tinyllm_layers import (
    MLP,
    DenseCache,
    GatedAttention,
    GatedDeltaNet,
    GroupedQueryAttention,
    MoE,
    RecurrentCache,
    RoPE,
)
from tinyllm_ops import OpSet
from tinyllm_ops.testing import assert_close, exact, normal

E, H, HKV, D, HK, HV, DK, DV = 64, 4, 2, 32, 2, 6, 16, 8
EDGES = [(0, 12), (0, 5, 6, 12), tuple(range(13))]


@pytest.fixture(scope="module")
def theirs() -> ModuleType:
    module: ModuleType = pytest.importorskip("mlx_lm.models.qwen3_5")
    return module


def arguments(theirs: ModuleType) -> Any:
    return theirs.TextModelArgs(
        hidden_size=E,
        num_attention_heads=H,
        num_key_value_heads=HKV,
        head_dim=D,
        linear_num_key_heads=HK,
        linear_num_value_heads=HV,
        linear_key_head_dim=DK,
        linear_value_head_dim=DV,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        shared_expert_intermediate_size=40,
        rope_parameters={"type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    )


def randomized(module: Any) -> dict[str, mx.array]:
    """Give every parameter random numbers, and return the parameters by name."""
    parameters = cast("list[tuple[str, mx.array]]", tree_flatten(module.parameters()))
    weights = {}
    for seed, (name, w) in enumerate(parameters):
        scale = 0.5 if w.ndim == 1 else w.shape[-1] ** -0.5
        weights[name] = normal(w.shape, seed=seed, magnitude=scale) + ("norm" in name)
    module.load_weights(list(weights.items()))
    module.eval()
    return weights


@pytest.mark.parametrize("edges", EDGES, ids=str)
def test_gated_delta_net_is_that_of_mlx_lm(
    ops: OpSet, theirs: ModuleType, edges: tuple[int, ...]
) -> None:
    module = theirs.GatedDeltaNet(arguments(theirs))
    w = randomized(module)
    layer = GatedDeltaNet(
        E,
        HK,
        HV,
        DK,
        DV,
        w["in_proj_qkv.weight"],
        w["in_proj_z.weight"],
        w["in_proj_b.weight"],
        w["in_proj_a.weight"],
        w["conv1d.weight"][..., 0],
        w["A_log"],
        w["dt_bias"],
        w["norm.weight"],
        w["out_proj.weight"],
        ops=ops,
    )
    x, cache = normal((2, 12, E), seed=1), RecurrentCache()
    y = mx.concatenate([layer(x[:, a:b], cache=cache) for a, b in pairwise(edges)], axis=1)
    assert_close(y, exact(module(x)))


@pytest.mark.parametrize("edges", EDGES, ids=str)
def test_gated_attention_is_that_of_mlx_lm(
    ops: OpSet, theirs: ModuleType, edges: tuple[int, ...]
) -> None:
    module = theirs.Attention(arguments(theirs))
    w = randomized(module)
    # Each head has rows [q | gate].
    wq, wg = mx.split(w["q_proj.weight"].reshape(H, 2 * D, E), 2, axis=1)
    attention = GroupedQueryAttention(
        *(E, H, HKV, D),
        *(wq.reshape(-1, E), *(w[f"{name}_proj.weight"] for name in "kvo")),
        rope=RoPE(D // 4, 100, 1e7, ops=ops),
        q_norm=w["q_norm.weight"],
        k_norm=w["k_norm.weight"],
        ops=ops,
    )
    layer = GatedAttention(attention, wg.reshape(-1, E))
    x, cache = normal((2, 12, E), seed=1), DenseCache()
    y = mx.concatenate([layer(x[:, a:b], cache=cache) for a, b in pairwise(edges)], axis=1)
    assert_close(y, exact(module(x, mask="causal")))


def test_the_shared_expert_is_that_of_mlx_lm(ops: OpSet, theirs: ModuleType) -> None:
    module = theirs.SparseMoeBlock(arguments(theirs))
    w = randomized(module)
    shared = [w[f"shared_expert.{name}_proj.weight"] for name in ("gate", "up", "down")]
    layer = MoE(
        *(E, 24, 6, 2),
        w["gate.weight"],
        *(w[f"switch_mlp.{name}_proj.weight"] for name in ("gate", "up", "down")),
        shared=MLP(E, 40, *shared, ops=ops),
        shared_gate=w["shared_expert_gate.weight"],
        ops=ops,
    )
    x = normal((2, 12, E), seed=1)
    assert_close(layer(x), exact(module(x)))
