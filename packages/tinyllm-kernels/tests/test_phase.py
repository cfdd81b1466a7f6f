"""The phase of a pass decides how rows are rounded. The number of rows has no effect.

In the phase "prefill" a chunk of one token has the bits that the token has inside a longer chunk.
In the phase "decode" a row `1 T E` has the bits of a decode step `1 1 E`. The tests call the
extension, for every instruction set of this machine.
"""

from collections.abc import Callable
from itertools import pairwise
from types import ModuleType

import mlx.core as mx
import pytest
from tinyllm_kernels.cpu.arguments import native_weight as weight
from tinyllm_kernels.cpu.interleaved_tensor import InterleavedTensor
from tinyllm_kernels.testing import WeightFormat, same_bits
from tinyllm_layers import Backend
from tinyllm_ops import OpSet, PageTable, QuantizedTensor, Weight, quantize
from tinyllm_ops.testing import normal

ROWS = 37
FORMATS: list[WeightFormat | None] = [
    None,
    ("affine", 4, 64),
    ("affine", 8, 32),
    ("affine", 3, 32),
    ("mxfp4", 4, 32),
]
PHASES = ["prefill", "decode"]
# Chunks of one token: three at the beginning, others in the middle and at the end; edges of tiles.
CUTS = [0, 1, 2, 3, 6, 7, 24, 25, 36, ROWS]
WIDTH, HIDDEN, HEADS, KV_HEADS, DIM = 128, 96, 6, 2, 32

Op = Callable[[mx.array, str], mx.array]


def check(op: Op, rows: mx.array, phase: str) -> None:
    """Compare rows `N E` one at a time with chunks `1 T E`, and with a batch `N 1 E`."""
    alone = mx.concatenate([op(rows[None, n : n + 1], phase) for n in range(len(rows))], axis=1)
    assert same_bits(op(rows[None], phase), alone)
    for first, last in ((3, 5), (1, 18), (2, 35)):
        assert same_bits(op(rows[None, first:last], phase), alone[:, first:last])
    assert same_bits(op(rows[:, None], phase), alone.swapaxes(0, 1))


def packed(shape: tuple[int, ...], dtype: mx.Dtype, form: WeightFormat | None, seed: int) -> Weight:
    """Return a random weight under which activations keep their size."""
    w = normal(shape, dtype, seed=seed) / shape[-1] ** 0.5
    return w if form is None else quantize(w, form[2], form[1], form[0])


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_linear(native: ModuleType, dtype: mx.Dtype, form: WeightFormat | None, phase: str) -> None:
    w, bias = weight(packed((45, 256), dtype, form, 2)), normal((45,), dtype, seed=3)
    rows = normal((ROWS, 256), dtype, seed=1)
    check(lambda x, phase: native.linear(x, w, bias, None, phase), rows, phase)
    odd = weight(normal((45, 257), dtype, seed=4))
    check(
        lambda x, phase: native.linear(x, odd, None, phase=phase),
        normal((ROWS, 257), dtype, seed=5),
        phase,
    )


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("width", [4, 8])
def test_linear_of_interleaved_rows(
    ops: Backend, native: ModuleType, dtype: mx.Dtype, width: int, phase: str
) -> None:
    weights: dict[str, Weight] = {"w": packed((64, 256), dtype, ("affine", width, 64), 2)}
    ops.prepare(weights)
    if not isinstance(weights["w"], InterleavedTensor):
        pytest.skip("this instruction set does not interleave rows")
    w = weight(weights["w"])
    rows = normal((ROWS, 256), dtype, seed=1)
    check(lambda x, phase: native.linear(x, w, None, None, phase), rows, phase)


@pytest.mark.parametrize("dims", [1, 2])
def test_linear_without_batch_axes(native: ModuleType, dtype: mx.Dtype, dims: int) -> None:
    w = weight(packed((45, 256), dtype, FORMATS[1], 2))
    rows = normal((20, 256), dtype, seed=1)
    first = 0 if dims == 1 else slice(0, 1)
    for phase in PHASES:
        whole = native.linear(rows, w, None, None, phase)
        assert same_bits(native.linear(rows[first], w, None, None, phase), whole[first])


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_expert_linear(
    native: ModuleType, dtype: mx.Dtype, form: WeightFormat | None, phase: str
) -> None:
    w = weight(packed((3, 27, 128), dtype, form, 2))

    def second_expert(x: mx.array, phase: str) -> mx.array:
        return native.expert_linear(x, w, mx.full(x.shape[:-1], 1, mx.int32), phase)

    rows = normal((ROWS, 128), dtype, seed=1)
    check(second_expert, rows, phase)
    long = second_expert(rows, phase)
    assert same_bits(second_expert(rows[:1], phase), long[:1])


def norm_of(width: int, dtype: mx.Dtype, seed: int) -> tuple[mx.array, float]:
    """Weight and epsilon of an RMSNorm."""
    return 1 + normal((width,), dtype, seed=seed) / 8, 1e-6


def mlp(native: ModuleType, dtype: mx.Dtype, form: WeightFormat | None) -> object:
    """A native handle of an MLP."""
    shapes = ((HIDDEN, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN))
    weights = [weight(packed(shape, dtype, form, 10 + i)) for i, shape in enumerate(shapes)]
    return native.mlp_handle(norm_of(WIDTH, dtype, 5), *weights, adds_residual=True)


def moe(native: ModuleType, dtype: mx.Dtype, form: WeightFormat | None) -> object:
    """A native handle of a MoE with 8 experts, 3 for each token, and a shared expert."""
    shapes = ((8, HIDDEN, WIDTH), (8, HIDDEN, WIDTH), (8, WIDTH, HIDDEN))
    router = weight(packed((8, WIDTH), dtype, None, 20))
    weights = [weight(packed(shape, dtype, form, 21 + i)) for i, shape in enumerate(shapes)]
    of_shared = [packed(shape[1:], dtype, form, 24 + i) for i, shape in enumerate(shapes)]
    of_shared.append(packed((1, WIDTH), dtype, form, 27))
    return native.moe_handle(
        norm_of(WIDTH, dtype, 5),
        router,
        *weights,
        experts_per_token=3,
        normalizes_routing_weights=True,
        shared=[weight(w) for w in of_shared],
    )


def attention_weights(native: ModuleType, dtype: mx.Dtype, form: WeightFormat | None) -> object:
    """A native handle of grouped-query attention."""
    widths = (HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM)
    inputs = [
        (weight(packed((n, WIDTH), dtype, form, 30 + i)), normal((n,), dtype, seed=40 + i))
        for i, n in enumerate(widths)
    ]
    output = (weight(packed((WIDTH, HEADS * DIM), dtype, form, 33)), None)
    frequencies = mx.array([1e4 ** (-2 * i / DIM) for i in range(DIM // 2)])
    norms = {"q_norm": norm_of(DIM, dtype, 6), "k_norm": norm_of(DIM, dtype, 7)}
    return native.AttentionHandle(
        norm_of(WIDTH, dtype, 5),
        *inputs,
        output,
        head_dim=DIM,
        rope=(frequencies, False, 1.0),
        **norms,
    )


# Groups of 32, because 64 does not divide HIDDEN.
LAYER_FORMATS = [None, ("affine", 4, 32), ("affine", 8, 32), ("mxfp4", 4, 32)]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("form", LAYER_FORMATS, ids=str)
@pytest.mark.parametrize("make_handle", [mlp, moe])
def test_feed_forward(
    native: ModuleType,
    dtype: mx.Dtype,
    form: WeightFormat | None,
    phase: str,
    make_handle: Callable[[ModuleType, mx.Dtype, WeightFormat | None], object],
) -> None:
    handle = make_handle(native, dtype, form)
    rows = normal((ROWS, WIDTH), dtype, seed=1)
    check(lambda x, phase: native.feed_forward(x, handle, phase), rows, phase)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("form", LAYER_FORMATS, ids=str)
def test_project_qkv(
    native: ModuleType, dtype: mx.Dtype, form: WeightFormat | None, phase: str
) -> None:
    handle = attention_weights(native, dtype, form)

    def inputs(x: mx.array, phase: str) -> mx.array:
        # All tokens have one position, since the index of a token in x differs between calls.
        where = mx.full(x.shape[:2], 7, mx.int32)
        parts = native.project_qkv(x, handle, where, phase)
        return mx.concatenate([part.swapaxes(1, 2).flatten(2) for part in parts], axis=-1)

    check(inputs, normal((ROWS, WIDTH), dtype, seed=1), phase)


# With OFFSET earlier keys, prefill attention has two splits of keys.
OFFSET, PAGE = 2100, 16
# H, Hkv, D
SHAPES = [(6, 2, 64), (1, 1, 96), (9, 1, 32)]


def cache(shape: tuple[int, ...], dtype: mx.Dtype, width: int | None, seed: int) -> Weight:
    """Keys or values, quantized to `width` bits."""
    x = normal(shape, dtype, seed=seed)
    return x if width is None else quantize(x, 32, width)


def first_tokens(stored: Weight, count: int) -> tuple[object, ...]:
    """Return keys or values `B Hkv S D` of the first tokens, as a tuple of the extension."""
    if isinstance(stored, QuantizedTensor):
        return weight(stored.map(lambda part: part[:, :, :count]))
    return weight(stored[:, :, :count])


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    ("shape", "width"),
    [(SHAPES[0], 8), (SHAPES[0], 4), (SHAPES[1], 3), *((shape, None) for shape in SHAPES)],
    ids=str,
)
def test_attention(
    native: ModuleType,
    dtype: mx.Dtype,
    shape: tuple[int, int, int],
    width: int | None,
    phase: str,
) -> None:
    heads, kv_heads, dim = shape
    q = normal((1, heads, ROWS, dim), dtype, seed=1)
    k, v = (cache((1, kv_heads, OFFSET + ROWS, dim), dtype, width, seed) for seed in (2, 3))
    mask = normal((1, heads, ROWS, OFFSET + ROWS), dtype, seed=4)

    def attend(first: int, last: int, masked: bool) -> mx.array:
        seen = OFFSET + last
        added = mask[:, :, first:last, :seen] if masked else None
        stored = (first_tokens(k, seen), first_tokens(v, seen))
        return native.attention(q[:, :, first:last], *stored, dim**-0.5, True, added, phase)

    for masked in (False, True):
        whole = attend(0, ROWS, masked)
        chunks = [attend(*edges, masked) for edges in pairwise(CUTS)]
        assert same_bits(mx.concatenate(chunks, axis=2), whole)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("window", "width"), [(0, None), (301, None), (0, 8), (301, 4)])
def test_paged_attention(
    native: ModuleType,
    dtype: mx.Dtype,
    shape: tuple[int, int, int],
    window: int,
    width: int | None,
    phase: str,
) -> None:
    heads, kv_heads, dim = shape
    pages = -(-(OFFSET + ROWS) // PAGE)
    q = normal((ROWS, heads, dim), dtype, seed=1)
    k, v = (weight(cache((pages, kv_heads, PAGE, dim), dtype, width, seed)) for seed in (2, 3))
    table = mx.random.permutation(pages, key=mx.random.key(4))[None].astype(mx.int32)

    def attend(edges: list[int]) -> mx.array:
        """Compute all chunks in one call, as requests with the same pages."""
        where = (
            mx.repeat(table, len(edges) - 1, axis=0),
            mx.array(edges, mx.int32),
            mx.array(edges[1:], mx.int32) + OFFSET,
        )
        return native.paged_attention(q, k, v, *where, dim**-0.5, window, phase)

    whole = attend([0, ROWS])
    assert same_bits(attend(CUTS), whole)
    assert same_bits(attend(list(range(ROWS + 1))), whole)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("form", LAYER_FORMATS[:3], ids=str)
@pytest.mark.parametrize("make_handle", [mlp, moe])
def test_layers(
    native: ModuleType,
    dtype: mx.Dtype,
    form: WeightFormat | None,
    phase: str,
    make_handle: Callable[[ModuleType, mx.Dtype, WeightFormat | None], object],
) -> None:
    halves = attention_weights(native, dtype, form), make_handle(native, dtype, form)
    group = native.layer_group([halves] * 2)
    x = normal((1, ROWS, WIDTH), dtype, seed=1)

    def outputs(edges: list[int]) -> list[mx.array]:
        stores = [mx.zeros((1, 2, KV_HEADS, ROWS, DIM), dtype) for _ in range(2)]
        chunks = []
        for first, last in pairwise(edges):
            y, *stores = native.layers(x[:, first:last], group, stores, first, phase)
            chunks.append(y)
        return [mx.concatenate(chunks, axis=1), *stores]

    whole = outputs([0, ROWS])
    for edges in (CUTS, list(range(ROWS + 1))):
        assert all(same_bits(a, b) for a, b in zip(outputs(edges), whole, strict=True))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("form", LAYER_FORMATS[:2], ids=str)
@pytest.mark.parametrize("window", [0, 11])
@pytest.mark.parametrize("width", [None, 8, 4])
def test_paged_layers(
    native: ModuleType,
    dtype: mx.Dtype,
    form: WeightFormat | None,
    window: int,
    width: int | None,
    phase: str,
) -> None:
    halves = attention_weights(native, dtype, form), mlp(native, dtype, form)
    group = native.layer_group([halves] * 2)
    page_format = (0, 0) if width is None else (32, width)
    x = normal((1, ROWS, WIDTH), dtype, seed=1)
    pages = -(-ROWS // PAGE)
    table = mx.arange(pages, dtype=mx.int32)[::-1][None]

    def outputs(edges: list[int]) -> list[mx.array]:
        """Run one pass for each chunk, together with a request of one token in its own page."""
        shape = (pages + 1, KV_HEADS, PAGE, DIM)
        stores: list[mx.array] = []
        for seed in (2, 3, 4, 5):
            stored = cache(shape, dtype, width, seed)
            stores += [stored] if isinstance(stored, mx.array) else stored.arrays
        chunks = []
        for first, last in pairwise(edges):
            where = mx.arange(first, last)
            slots = table[0, where // PAGE] * PAGE + where % PAGE
            one = mx.array([pages], mx.int32)
            tokens = (
                mx.concatenate([table, mx.full(table.shape, pages, mx.int32)]),
                mx.array([0, last - first, last - first + 1], mx.int32),
                mx.array([last, 1], mx.int32),
                mx.concatenate([where, mx.zeros(1, mx.int32)]).astype(mx.int32),
                mx.concatenate([slots, one * PAGE]).astype(mx.int32),
            )
            rows = mx.concatenate([x[:, first:last], x[:, :1]], axis=1)
            y, *stores = native.paged_layers(
                rows, group, stores, page_format, tokens, window, phase
            )
            chunks.append(y)
        own = [part[:pages] for part in stores]
        return [
            mx.concatenate([y[:, :-1] for y in chunks], axis=1),
            *(mx.concatenate([y[:, -1:] for y in chunks[:1]], axis=1), *own),
        ]

    whole = outputs([0, ROWS])
    for edges in (CUTS, list(range(ROWS + 1))):
        for a, b in zip(outputs(edges), whole, strict=True):
            assert mx.array_equal(a, b).item()


def test_without_a_phase_the_shape_decides(native: ModuleType, dtype: mx.Dtype) -> None:
    w = weight(packed((45, 256), dtype, FORMATS[1], 2))
    rows = normal((ROWS, 256), dtype, seed=1)
    for x, phase in ((rows[None], "prefill"), (rows[:, None], "decode"), (rows[:16], "decode")):
        assert same_bits(native.linear(x, w, None), native.linear(x, w, None, None, phase))


def test_an_unknown_phase_is_refused(native: ModuleType) -> None:
    with pytest.raises(ValueError, match="phase: expected prefill, decode or None, got prompt"):
        native.linear(mx.ones((1, 32)), weight(mx.ones((2, 32))), None, None, "prompt")


def test_the_opset_takes_a_phase(ops: OpSet, native: ModuleType, dtype: mx.Dtype) -> None:
    w = packed((45, 256), dtype, FORMATS[1], 2)
    x = normal((1, 1, 256), dtype, seed=1)
    assert same_bits(
        ops.linear(x, w, phase="prefill"), native.linear(x, weight(w), None, None, "prefill")
    )
    stack = packed((2, 45, 256), dtype, FORMATS[1], 2)
    chosen = mx.zeros((1, 1), mx.int32)
    assert same_bits(
        ops.expert_linear(x, stack, chosen, phase="prefill"),
        native.expert_linear(x, weight(stack), chosen, "prefill"),
    )
    q, k = normal((1, 4, 1, 32), dtype, seed=2), normal((1, 2, 300, 32), dtype, seed=3)
    assert same_bits(
        ops.attention(q, k, k, 0.2, phase="prefill"),
        native.attention(q, weight(k), weight(k), 0.2, False, None, "prefill"),
    )
    pages = k.reshape(2, 15, 20, 32).swapaxes(0, 1)
    where = PageTable.of([(range(15), 299, 300)], num_pages=15, page_size=20)
    assert same_bits(
        ops.paged_attention(q[0].swapaxes(0, 1), pages, pages, where, 0.2, phase="prefill"),
        ops.attention(q, k, k, 0.2, phase="prefill")[0].swapaxes(0, 1),
    )
