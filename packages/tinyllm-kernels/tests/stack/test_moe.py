"""The native half of a layer that routes tokens, computes experts and sums their outputs."""

from dataclasses import replace

import mlx.core as mx
import pytest
from tinyllm_kernels.testing import LayerShape, make_caches, make_input, make_layers, same_bits
from tinyllm_layers import MLP, Backend, Batch, DecoderLayer, LayerStack, MoE, make_stack
from tinyllm_ops.testing import assert_close, exact

SHAPES = [
    LayerShape("qwen3_moe", None, experts=8, chosen=3),
    LayerShape("qwen3_moe", ("affine", 4, 32), experts=8, chosen=1, norm_topk_prob=False),
    LayerShape("qwen3_moe", None, width=37, hidden=91, experts=7, chosen=7),
    LayerShape("qwen3_moe", ("affine", 4, 32), experts=8, chosen=3, shared=160),
]


class OtherMLP(MLP):
    """A subclass, which may compute something else."""


def output(layers: list[DecoderLayer], x: mx.array, ops: Backend, *, native: bool) -> mx.array:
    """Return the output of one pass with empty dense caches."""
    stack = make_stack(layers, ops) if native else LayerStack(layers)
    batch = Batch.at(0, x.shape[0], x.shape[1])
    return stack(x, batch, make_caches("dense", len(layers), LayerShape("qwen3_moe"), x.dtype))


@pytest.mark.parametrize(
    "shape", SHAPES, ids=["3-of-8", "1-of-8", "7-of-7", "3-of-8-and-a-shared-one"]
)
@pytest.mark.parametrize("lead", [(1, 1), (5, 1), (1, 47), (2, 9)], ids=str)
def test_experts_are_those_of_the_layer(
    ops: Backend, dtype: mx.Dtype, lead: tuple[int, int], shape: LayerShape
) -> None:
    layers = make_layers(shape, 1, dtype, ops)
    x = make_input(Batch.at(0, *lead), shape.width, dtype, seed=1)
    y = output(layers, x, ops, native=True)
    assert (y.shape, y.dtype) == (x.shape, dtype)
    assert_close(y, exact(output(layers, x, ops, native=False)))


def test_of_equal_routing_weights_the_first_expert_is_chosen(ops: Backend) -> None:
    (layer,) = make_layers(LayerShape("qwen3_moe", experts=6), 1, mx.float32, ops)
    moe = layer.mlp
    assert isinstance(moe, MoE)
    alike = replace(moe, w_router=mx.zeros((6, 64)))
    first = replace(
        moe,
        num_experts=2,
        w_router=mx.zeros((2, 64)),
        w_gate=moe.w_gate[:2],
        w_up=moe.w_up[:2],
        w_down=moe.w_down[:2],
    )
    x = make_input(Batch.at(0, 3, 1), 64, mx.float32, seed=5)
    made = [output([replace(layer, mlp=mlp)], x, ops, native=True) for mlp in (alike, first)]
    assert same_bits(*made)


def test_nan_and_inf_stay_in_their_row(ops: Backend) -> None:
    layers = make_layers(LayerShape("qwen3_moe", experts=6), 1, mx.float32, ops)
    x = make_input(Batch.at(0, 4, 1), 64, mx.float32, seed=6)
    x[1, 0, 5] = mx.nan
    y = output(layers, x, ops, native=True)
    assert mx.isnan(y).all(axis=(1, 2)).tolist() == [False, True, False, False]
    fine = mx.array([0, 2, 3])
    assert same_bits(y[fine], output(layers, x[fine], ops, native=True))


def test_whole_layers_have_a_shared_expert_of_a_known_class(ops: Backend) -> None:
    from tinyllm_kernels.cpu.layers.handles import layer_handle  # absent without the extension

    (layer,) = make_layers(LayerShape("qwen3_moe", shared=32), 1, mx.float32, ops)
    handle = layer_handle(layer)
    assert handle is not None
    assert handle.input_spec.whole
    assert isinstance(layer.mlp, MoE)
    other = OtherMLP(
        64, 32, *(mx.zeros(shape) for shape in ((32, 64), (32, 64), (64, 32))), ops=ops
    )
    assert layer_handle(replace(layer, mlp=replace(layer.mlp, shared=other))) is None
