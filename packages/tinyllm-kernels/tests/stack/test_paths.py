"""The choice of a path (whole layers, halves or the layer itself), and layers on several ranks."""

from dataclasses import replace
from typing import cast

import mlx.core as mx
import pytest
from tinyllm_kernels.testing import (
    LayerShape,
    make_batches,
    make_caches,
    make_input,
    make_layers,
    make_table,
    same_bits,
)
from tinyllm_layers import (
    MLP,
    Backend,
    Batch,
    Biases,
    Communicator,
    DecoderLayer,
    LayerCache,
    LayerStack,
    MoE,
    QuantizedCache,
    make_stack,
)
from tinyllm_layers.testing import Family, attention_of
from tinyllm_ops import Weight
from tinyllm_ops.testing import assert_close, exact


class Rank(Communicator):
    """A communicator of one of two processes. It records its terms, and does not add them."""

    def __init__(self, rank: int) -> None:
        self.rank, self.size = rank, 2
        self.reduced: list[mx.array] = []

    def all_reduce(self, part: mx.array) -> mx.array:
        self.reduced.append(part)
        return part


def half_of(layer: DecoderLayer, communicator: Rank) -> DecoderLayer:
    """Return the part of a layer in one of two processes: heads, and columns or experts."""
    a, mlp, rank = attention_of(layer), layer.mlp, communicator.rank

    def rows(w: Weight, count: int) -> Weight:
        return w[rank * count : (rank + 1) * count]

    heads, kv = a.num_heads // 2, a.num_kv_heads // 2
    width, kv_width = heads * a.head_dim, kv * a.head_dim
    assert isinstance(a.wo, mx.array)
    attention = replace(
        a,
        num_heads=heads,
        num_kv_heads=kv,
        wq=rows(a.wq, width),
        wk=rows(a.wk, kv_width),
        wv=rows(a.wv, kv_width),
        wo=a.wo[:, rank * width : (rank + 1) * width],
        communicator=communicator,
    )
    if isinstance(mlp, MoE):
        first = 0 if rank == 0 else 3
        experts = range(first, 3 if rank == 0 else mlp.num_experts)
        part = slice(experts.start, experts.stop)
        shared: MLP | MoE = replace(
            mlp,
            w_gate=mlp.w_gate[part],
            w_up=mlp.w_up[part],
            w_down=mlp.w_down[part],
            local_experts=experts,
            communicator=communicator,
        )
    else:
        count = mlp.hidden_dim // 2
        assert isinstance(mlp.w_down, mx.array)
        shared = replace(
            mlp,
            hidden_dim=count,
            w_gate=rows(mlp.w_gate, count),
            w_up=rows(mlp.w_up, count),
            w_down=mlp.w_down[:, rank * count : (rank + 1) * count],
            communicator=communicator,
        )
    return replace(layer, mixer=attention, mlp=shared)


@pytest.mark.parametrize("kind", ["dense", "paged", "rotating"])
@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_gives_the_terms_of_its_layers(
    ops: Backend, dtype: mx.Dtype, rank: int, family: Family, kind: str
) -> None:
    """The stack and the layer give the same bits. Rank 0 alone adds the residual."""
    shape = LayerShape(family)
    whole = make_layers(shape, 1, dtype, ops)[0]
    biases = Biases(o=make_input(Batch.at(0, 1, 1), shape.width, dtype, seed=2)[0, 0])
    whole = replace(whole, mixer=replace(attention_of(whole), biases=biases))
    terms = []
    for native in (True, False):
        communicator = Rank(rank)
        layers = [half_of(whole, communicator)]
        stack = make_stack(layers, ops) if native else LayerStack(layers)
        caches = make_caches(kind, 1, replace(shape, kv_heads=1), dtype)
        for seed, batch in enumerate(make_batches(kind)):
            stack(make_input(batch, shape.width, dtype, seed=seed), batch, caches)
        terms.append(communicator.reduced)
    assert len(terms[0]) == 2 * len(make_batches(kind))
    assert all(same_bits(a, b) for a, b in zip(*terms, strict=True))


def test_the_terms_of_all_ranks_add_up_to_the_layer(ops: Backend) -> None:
    shape, batch = LayerShape("qwen3"), Batch.at(0, 2, 5)
    whole = make_layers(shape, 1, mx.float32, ops)[0]
    x = make_input(batch, shape.width, mx.float32, seed=1)
    terms = []
    for rank in range(2):
        communicator = Rank(rank)
        stack = make_stack([half_of(whole, communicator)], ops)
        stack(x, batch, make_caches("dense", 1, shape, mx.float32))
        terms.append(communicator.reduced[0])
    expected = whole.mixer(
        whole.input_norm(x), batch, make_caches("dense", 1, shape, mx.float32)[0], residual=x
    )
    assert_close(terms[0] + terms[1], exact(expected))


class OtherMLP(MLP):
    """An MLP whose result is twice as large."""

    def __call__(self, x: mx.array, **arguments: object) -> mx.array:
        # All keyword arguments are passed on, so that their types are not repeated here.
        return 2 * super().__call__(x, **arguments)  # type: ignore[arg-type]


class Doubled:
    """A layer that has none of the parts of a decoder layer."""

    def __call__(self, x: mx.array, batch: Batch, cache: LayerCache) -> mx.array:
        return 2 * x


@pytest.mark.usefixtures("unchecked")
def test_a_layer_without_known_parts_computes_itself(ops: Backend) -> None:
    shape, batch = LayerShape(), Batch.at(0, 2, 3)
    first, last = make_layers(shape, 2, mx.float32, ops)
    layers = [first, cast(DecoderLayer, Doubled()), last]
    x = make_input(batch, shape.width, mx.float32, seed=1)
    made = [
        stack(x, batch, make_caches("dense", 3, shape, mx.float32))
        for stack in (make_stack(layers, ops), LayerStack(layers))
    ]
    assert same_bits(*made)


@pytest.mark.parametrize("kind", ["dense", "paged", "quantized-8"])
def test_layers_of_other_classes_compute_themselves(ops: Backend, kind: str) -> None:
    shape = LayerShape("qwen2")
    first, second, third = make_layers(shape, 3, mx.float32, ops)
    m = second.mlp
    other = replace(second, mlp=OtherMLP(m.dim, m.hidden_dim, m.w_gate, m.w_up, m.w_down, ops=ops))
    layers = [first, other, third]
    made = []
    for stack in (make_stack(layers, ops), LayerStack(layers)):
        caches = make_caches(kind, 3, shape, mx.float32)
        batch = make_batches(kind)[0]
        made.append(stack(make_input(batch, shape.width, mx.float32, seed=1), batch, caches))
    assert same_bits(*made)


def test_weights_of_several_dtypes_are_left_to_the_ops(ops: Backend) -> None:
    shape, batch = LayerShape("qwen2"), Batch.at(0, 1, 3)
    (layer,) = make_layers(shape, 1, mx.float32, ops)
    biases = Biases(q=mx.zeros(128, mx.float16))
    stack = make_stack([replace(layer, mixer=replace(attention_of(layer), biases=biases))], ops)
    x = make_input(batch, shape.width, mx.float32, seed=1)
    with pytest.raises(ValueError, match="bias: expected dtype"):
        stack(x, batch, make_caches("dense", 1, shape, mx.float32))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", ["dense", "quantized-8", "rotating", "paged"])
@pytest.mark.parametrize(
    ("x", "complaint"),
    [
        (mx.zeros((2, 5, 60)), "expected shape"),
        (mx.zeros((2, 5, 64), mx.float16), "expected dtype"),
        (mx.zeros((2, 4, 64)), "x: expected shape"),
        (mx.zeros((1, 5, 64)), "x: expected shape"),
    ],
    ids=["width", "dtype", "length", "rows"],
)
def test_an_input_that_does_not_fit_is_refused(
    ops: Backend, kind: str, x: mx.array, complaint: str
) -> None:
    shape = LayerShape()
    stack = make_stack(make_layers(shape, 2, mx.float32, ops), ops)
    batch = Batch.at(0, 2, 5)
    if kind == "paged":
        batch = Batch.paged(make_table(((7, 2), 0, 5), ((4, 0), 0, 5)), "prefill")
        x = x.reshape(1, -1, x.shape[-1])
    with pytest.raises(ValueError, match=complaint):
        stack(x, batch, make_caches(kind, 2, shape, mx.float32))


def test_caches_that_do_not_fit_are_refused(ops: Backend) -> None:
    shape, batch = LayerShape(), Batch.at(0, 1, 2)
    stack = make_stack(make_layers(shape, 2, mx.float32, ops), ops)
    x = make_input(batch, shape.width, mx.float32, seed=1)
    with pytest.raises(ValueError, match="caches: expected 2, one per layer, got 1"):
        stack(x, batch, make_caches("dense", 1, shape, mx.float32))
    wide = make_caches("dense", 2, shape, mx.float32)
    stack(mx.concatenate([x, x]), Batch.at(0, 2, 2), wide)
    with pytest.raises(ValueError, match="expected"):
        stack(x, Batch.at(2, 1, 2), wide)
    with pytest.raises(ValueError, match="expected a page table"):
        stack(x, batch, make_caches("paged", 2, shape, mx.float32))
    other_heads = make_caches("paged", 2, replace(shape, kv_heads=1), mx.float32)
    paged = Batch.paged(make_table(((7,), 0, 2)), "prefill")
    with pytest.raises(ValueError, match="expected"):
        stack(x, paged, other_heads)


def test_codes_in_groups_larger_than_a_head_are_refused(ops: Backend) -> None:
    shape, batch = LayerShape(), Batch.at(0, 1, 2)
    stack = make_stack(make_layers(shape, 2, mx.float32, ops), ops)
    x = make_input(batch, shape.width, mx.float32, seed=1)
    with pytest.raises(ValueError, match="k: expected a head dim in groups of 64, got 32"):
        stack(x, batch, [QuantizedCache(8, 64) for _ in range(2)])


def test_a_token_beyond_the_context_is_refused(ops: Backend) -> None:
    shape = replace(LayerShape(), seq_len=8)
    stack = make_stack(make_layers(shape, 2, mx.float32, ops), ops)
    caches: list[LayerCache] = make_caches("dense", 2, shape, mx.float32)
    batch = Batch.at(0, 1, 9)
    with pytest.raises(ValueError, match="expected numbers below 8"):
        stack(make_input(batch, shape.width, mx.float32, seed=1), batch, caches)
    assert not caches[0].arrays
