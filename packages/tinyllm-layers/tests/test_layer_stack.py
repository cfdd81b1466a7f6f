"""The loop over decoder layers, and stacks of backends that replace the loop."""

import re
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_layers import (
    Backend,
    Batch,
    DecoderLayer,
    DenseCache,
    Embedding,
    KVCache,
    LayerStack,
    QuantizedCache,
    RotatingCache,
    make_stack,
)
from tinyllm_layers.testing import (
    FAMILIES,
    Family,
    oracle,
    packed,
    paged_batches,
    random_decoder_layer,
    random_pages,
    run_chunks,
    run_pages,
)
from tinyllm_ops import MLX, REFERENCE, Fusion, OpSet, Weight
from tinyllm_ops.testing import assert_close, exact, normal

LENGTHS = (5, 1, 1, 6)
CACHES: dict[str, Callable[[], KVCache]] = {
    "d": DenseCache,
    "r": lambda: RotatingCache(8),
    "q": lambda: QuantizedCache(8, 32),
}


def make(families: Sequence[Family], ops: OpSet, bits: int | None = None) -> list[DecoderLayer]:
    return [
        random_decoder_layer(family, seed=seed, pack=packed(bits), ops=ops)
        for seed, family in enumerate(families)
    ]


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_is_the_layers_one_after_the_other(ops: OpSet, family: Family, bits: int | None) -> None:
    layers = make([family] * 3, ops, bits)
    x = normal((2, 13, 64), seed=1)
    y = run_chunks(LayerStack(layers), x, [DenseCache() for _ in layers], LENGTHS)
    assert_close(y, oracle.decoder_layers(exact(x), layers))


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_texts_in_pages_are_texts_in_caches(ops: OpSet, family: Family, bits: int | None) -> None:
    layers = make([family] * 3, ops, bits)
    x = normal((2, 13, 64), seed=1)
    caches = [random_pages(layer, 9, 4, seed=seed) for seed, layer in enumerate(layers)]
    batches = paged_batches([[3, 1, 8, 2], [0, 6, 4, 7]], LENGTHS, num_pages=9, page_size=4)
    y = run_pages(LayerStack(layers), x, caches, batches)
    assert_close(y, oracle.decoder_layers(exact(x), layers))


@pytest.mark.parametrize(
    ("families", "kinds"),
    [
        (["qwen3"] * 4, "drrd"),
        (["qwen2"] * 3, "qqd"),
        (["qwen2", "qwen3_moe", "qwen3_moe", "qwen3"], "dqrd"),
    ],
    ids=str,
)
def test_each_layer_may_have_another_cache(ops: OpSet, families: list[Family], kinds: str) -> None:
    layers = make(families, ops)
    together, singly = ([CACHES[kind]() for kind in kinds] for _ in range(2))
    stack, text = LayerStack(layers), normal((1, 13, 64), seed=1)
    first = 0
    for length in LENGTHS:
        batch, x = Batch.at(first, 1, length), text[:, first : first + length]
        y = stack(x, batch, together)
        for layer, cache in zip(layers, singly, strict=True):
            x = layer(x, batch, cache)
        assert mx.array_equal(y, x)
        first += length
    assert [cache.offset for cache in together] == [13] * len(layers)


def test_each_layer_needs_a_cache() -> None:
    layers = make(["qwen3"] * 2, REFERENCE)
    for count in (0, 1, 3):
        caches = [DenseCache() for _ in range(count)]
        with pytest.raises(ValueError, match=f"caches: expected 2, one per layer, got {count}"):
            LayerStack(layers)(mx.zeros((1, 1, 64)), Batch.at(0, 1, 1), caches)
        assert [cache.offset for cache in caches] == [0] * count


def addresses(arrays: list[mx.array]) -> list[int]:
    mx.eval(arrays)
    return [np.asarray(array).__array_interface__["data"][0] for array in arrays]


@pytest.fixture
def on_cpu() -> object:
    """Compute on the CPU, where MLX frees inputs of a computation before `mx.eval` returns."""
    before = mx.default_device()
    mx.set_default_device(mx.Device(mx.cpu))
    yield
    mx.set_default_device(before)


@pytest.mark.parametrize("opset", [REFERENCE, MLX], ids=lambda opset: opset.name)
@pytest.mark.parametrize("kind", CACHES)
def test_decode_steps_write_caches_in_place(on_cpu: None, opset: OpSet, kind: str) -> None:
    layers = make(["qwen3"] * 3, opset)
    caches = [CACHES[kind]() for _ in layers]

    def arrays() -> list[mx.array]:
        return [array for cache in caches for array in cache.arrays]

    stack, x = LayerStack(layers), normal((1, 1, 64), seed=1)
    prompt = stack(normal((1, 9, 64), seed=2), Batch.at(0, 1, 9), caches)
    mx.eval(prompt, arrays())
    before = addresses(arrays())
    for step in range(9, 15):
        mx.eval(stack(x, Batch.at(step, 1, 1), caches))
        assert addresses(arrays()) == before
    # A fork is a second owner of the arrays. The next step copies all arrays. Later steps write to
    # the copies in place.
    twins = [cache.fork() for cache in caches]
    mx.eval(stack(x, Batch.at(15, 1, 1), caches))
    copied = addresses(arrays())
    assert not set(copied) & set(before)
    assert addresses([array for twin in twins for array in twin.arrays]) == before
    mx.eval(stack(x, Batch.at(16, 1, 1), caches))
    assert addresses(arrays()) == copied


@pytest.mark.parametrize("opset", [REFERENCE, MLX], ids=lambda opset: opset.name)
@pytest.mark.parametrize("bits", [None, 8])
def test_passes_over_pages_write_them_in_place(
    on_cpu: None, opset: OpSet, bits: int | None
) -> None:
    layers = make(["qwen3"] * 3, opset)
    caches = [random_pages(layer, 9, 4, seed=1, pack=packed(bits)) for layer in layers]

    def arrays() -> list[mx.array]:
        return [array for cache in caches for array in cache.arrays]

    lengths = [5, 1, 1, 4, 1]
    batches = paged_batches([[3, 1, 8], [0, 6, 4]], lengths, num_pages=9, page_size=4)
    stack, before = LayerStack(layers), addresses(arrays())
    for batch in batches:
        mx.eval(stack(mx.ones((batch.rows, batch.length, 64)), batch, caches))
        assert addresses(arrays()) == before
    for cache in caches:
        cache.copy([(0, 5), (3, 2)])
    assert addresses(arrays()) == before
    twins = [cache.fork() for cache in caches]
    mx.eval(stack(mx.ones((2, 1, 64)), batches[-1], caches))
    assert not set(addresses(arrays())) & set(before)
    assert addresses([array for twin in twins for array in twin.arrays]) == before


class Counted:
    """A stack that computes with a `LayerStack`, and counts its instances and calls."""

    made = 0
    calls = 0

    def __init__(self, layers: Sequence[DecoderLayer]) -> None:
        type(self).made += 1
        self.loop = LayerStack(layers)

    def __call__(self, x: mx.array, batch: Batch, caches: Sequence[KVCache]) -> mx.array:
        type(self).calls += 1
        return self.loop(x, batch, caches)


STOOD_FOR = ("linear", "rms_norm", "rope", "attention", "swiglu")


def counting_backend() -> tuple[Backend, type[Counted]]:
    class Mine(Counted):
        pass

    ops = {field.name: getattr(REFERENCE, field.name) for field in fields(OpSet)}
    return Backend(**(ops | {"name": "counted"}), stack=Fusion(Mine, of=STOOD_FOR)), Mine  # type: ignore[arg-type]


def test_a_backend_brings_its_stack() -> None:
    backend, mine = counting_backend()
    layers = make(["qwen3"] * 2, backend)
    x = normal((1, 13, 64), seed=1)
    y = run_chunks(make_stack(layers, backend), x, [DenseCache() for _ in layers], LENGTHS)
    assert (mine.made, mine.calls) == (1, len(LENGTHS))
    assert_close(y, oracle.decoder_layers(exact(x), layers))


def test_ops_without_a_stack_run_the_loop(ops: OpSet) -> None:
    plain = {field.name: getattr(ops, field.name) for field in fields(OpSet)}
    for each in (ops, Backend(**plain)):
        layers = make(["qwen3"], each)
        stack = make_stack(layers, each)
        assert isinstance(stack, LayerStack)
        assert stack.layers is layers


OPS = [field.name for field in fields(OpSet) if field.name not in ("name", "norm_rope")]


@pytest.mark.parametrize("name", OPS)
def test_a_stack_is_dropped_where_one_of_its_ops_is_replaced(name: str) -> None:
    backend, _ = counting_backend()
    original = getattr(backend, name)

    def mine(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    if name not in STOOD_FOR:  # there is no warning, which pytest would turn into an error
        assert replace(backend, **{name: mine}).stack.function is backend.stack.function  # type: ignore[arg-type]
        return
    words = re.escape(f"counted: {name} replaced, so stack of this OpSet is not used")
    with pytest.warns(UserWarning, match=words) as caught:
        changed = replace(backend, **{name: mine})  # type: ignore[arg-type]
    assert len(caught) == 1
    assert changed.stack is None
    assert isinstance(make_stack(make(["qwen3"], changed), changed), LayerStack)
    again = replace(changed, **{name: original})  # no second warning
    assert again.stack is None


def test_several_replaced_ops_are_one_warning() -> None:
    backend, _ = counting_backend()
    ops = {name: lambda *args, **kwargs: None for name in ("rope", "rms_norm", "quantize")}
    with pytest.warns(UserWarning, match="counted: rms_norm, rope replaced, so stack") as caught:
        replace(backend, **ops)  # type: ignore[arg-type]
    assert len(caught) == 1


def test_weights_are_unchanged_unless_a_backend_prepares_them() -> None:
    backend, _ = counting_backend()
    table, half = mx.ones((2, 2)), mx.full((2, 2), 0.5)
    weights: dict[str, Weight] = {"w": table}
    backend.prepare(weights)
    assert list(weights) == ["w"]
    assert weights["w"] is table
    replace(backend, prepare=lambda found: found.update(w=half)).prepare(weights)
    assert weights["w"] is half


CALLED = [
    ("linear", "qwen3", None),
    ("rms_norm", "qwen3", None),
    ("rope", "qwen3", None),
    ("rope", "qwen2", None),
    ("swiglu", "qwen3", None),
    ("attention", "qwen3", None),
    ("quantize", "qwen3", "q"),
    ("expert_linear", "qwen3_moe", None),
    ("softmax", "qwen3_moe", None),
    ("swiglu", "qwen3_moe", None),
    ("paged_attention", "qwen3", "p"),
    ("quantize", "qwen3", "pq"),
]


@pytest.mark.parametrize(("name", "family", "kind"), CALLED)
@pytest.mark.parametrize("opset", [REFERENCE, MLX], ids=lambda opset: opset.name)
def test_a_replaced_op_runs(opset: OpSet, name: str, family: Family, kind: str | None) -> None:
    calls = []
    original = getattr(opset, name)

    def mine(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return original(*args, **kwargs)

    changed = replace(opset, **{name: mine})  # type: ignore[arg-type]
    layer = random_decoder_layer(family, ops=changed)
    plain = random_decoder_layer(family, ops=opset)
    x = normal((2, 3, 64), seed=1)
    if kind is not None and "p" in kind:
        pages = [[0], [1]]
        (batch,) = paged_batches(pages, [3], num_pages=2, page_size=4)
        caches = [random_pages(layer, 2, 4, pack=packed(8 if "q" in kind else None))]
        caches += [caches[0].fork()]
        x = x.reshape(1, 6, 64)
    else:
        batch = Batch.at(0, 2, 3)
        caches = [CACHES[kind or "d"]() for _ in range(2)]  # type: ignore[misc]
    y = make_stack([layer], changed)(x, batch, caches[:1])
    assert calls
    assert mx.array_equal(y, LayerStack([plain])(x, batch, caches[1:]))


def test_a_replaced_embedding_runs(ops: OpSet) -> None:
    calls = []

    def mine(ids: mx.array, w: mx.array) -> mx.array:
        calls.append(ids)
        return ops.embedding(ids, w)

    ids = mx.array([1])
    Embedding(3, 2, mx.ones((3, 2)), ops=replace(ops, embedding=mine))(ids)  # type: ignore[arg-type]
    assert calls == [ids]
