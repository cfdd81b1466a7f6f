from dataclasses import FrozenInstanceError, fields, replace

import mlx.core as mx
import pytest
from tinyllm_layers import (
    Batch,
    DecoderLayer,
    DenseCache,
    Embedding,
    LayerStack,
    SimpleMultiHeadAttention,
    weights_of,
)
from tinyllm_layers.testing import (
    FAMILIES,
    Family,
    attention_of,
    oracle,
    packed,
    random_decoder_layer,
    random_moe,
)
from tinyllm_ops import OpSet, QuantizedTensor
from tinyllm_ops.testing import assert_close, exact, normal


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cut", [0, 1, 8])
def test_adds_attention_and_mlp_to_its_input(
    ops: OpSet, dtype: mx.Dtype, family: Family, bits: int | None, cut: int
) -> None:
    layer = random_decoder_layer(
        family, num_heads=6, dtype=dtype, pack=packed(bits), seed=3, ops=ops
    )
    text, cache = normal((2, 9, 64), dtype, seed=36), DenseCache()
    y = mx.concatenate(
        [
            layer(text[:, :cut], Batch.at(0, 2, cut), cache),
            layer(text[:, cut:], Batch.at(cut, 2, 9 - cut), cache),
        ],
        axis=1,
    )
    assert y.dtype == dtype
    assert_close(y, oracle.decoder_layer(exact(text), layer))


LAYER = random_decoder_layer("qwen2")
LAYERS = {
    "decoder layer": LAYER,
    "attention": LAYER.mixer,
    "biases": LAYER.mixer.biases,
    "mlp": LAYER.mlp,
    "moe": random_moe(),
    "norm": LAYER.input_norm,
    "rope": LAYER.mixer.rope,
    "embedding": Embedding(4, 3, mx.zeros((4, 3))),
    "simple attention": SimpleMultiHeadAttention(4, 2, *[mx.zeros((4, 4))] * 4),
    "stack": LayerStack([LAYER]),
    "batch": Batch.at(0, 1, 1),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_are_frozen(kind: str) -> None:
    layer = LAYERS[kind]
    for field in fields(layer):
        before = getattr(layer, field.name)
        with pytest.raises(FrozenInstanceError):
            setattr(layer, field.name, before)
    # Layers are compared and hashed by identity, so that arrays are never compared.
    assert replace(layer) != layer
    assert {layer: 1}[layer] == 1


def test_a_changed_weight_makes_a_new_layer(ops: OpSet) -> None:
    layer = random_decoder_layer(ops=ops)
    attention = attention_of(layer)
    wo = normal(attention.wo.shape, seed=9, magnitude=0.1)
    changed = replace(layer, mixer=replace(attention, wo=wo))
    x = normal((1, 5, 64), seed=1)
    for each in (layer, changed):
        y = each(x, Batch.at(0, 1, 5), DenseCache())
        assert_close(y, oracle.decoder_layer(exact(x), each))
    assert attention_of(changed).wq is attention.wq


def test_a_changed_weight_is_checked() -> None:
    with pytest.raises(ValueError, match=r"wo: expected shape \(64, 128\), got \(64, 64\)"):
        replace(attention_of(LAYER), wo=mx.zeros((64, 64)))


def test_lists_all_weights_in_the_order_of_the_fields() -> None:
    def names(layer: DecoderLayer) -> list[object]:
        attention, mlp = layer.mixer, layer.mlp
        found = [layer.input_norm.weight, attention.wq, attention.wk, attention.wv, attention.wo]
        biases, norms = attention.biases, (attention.q_norm, attention.k_norm)
        found += [w for w in (biases.q, biases.k, biases.v, biases.o, *norms) if w is not None]
        router = [] if not hasattr(mlp, "w_router") else [mlp.w_router]
        rest = [layer.post_attention_norm.weight, *router, mlp.w_gate, mlp.w_up, mlp.w_down]
        return found + rest

    layers = [random_decoder_layer(family, pack=packed(4)) for family in FAMILIES]
    expected = [w for layer in layers for w in names(layer)]
    for container in (layers, tuple(layers), LayerStack(layers)):
        assert list(map(id, weights_of(container))) == list(map(id, expected))
    counts = [len(weights_of(layer)) for layer in layers]
    assert counts == [12, 11, 12]  # three biases; two norms; two norms and a router
    assert sum(isinstance(w, QuantizedTensor) for w in weights_of(layers)) == 7 + 7 + 8
    table = mx.zeros((4, 3))
    assert weights_of([Embedding(4, 3, table), table, None]) == [table, table]
