"""A row has the same bits for any batch composition, in each of the two phases.

Each request of a batch gets the bits that it gets alone. R decode steps have the shape `R 1 E`. The
tokens of a prompt have the shape `1 T E`.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import mlx.core as mx
import pytest
from tinyllm_kernels.testing import LayerShape, WeightFormat, make_layers, same_bits
from tinyllm_layers import Batch, DenseCache, LayerCache, PagedCache, make_stack
from tinyllm_layers.testing import Family
from tinyllm_ops import OpSet, PageTable, Weight, quantize
from tinyllm_ops.testing import normal

COUNTS = [1, 2, 3, 16, 17, 33, 100]
FORMATS = [
    None,
    ("affine", 4, 64),
    ("affine", 8, 32),
    ("affine", 3, 32),
    ("mxfp4", 4, 32),
    ("mxfp8", 8, 32),
    ("nvfp4", 4, 16),
]
Op = Callable[[mx.array], mx.array]


def row_ranges(rows: mx.array) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of rows that are computed together, at varying offsets."""
    for count in COUNTS:
        first = min(count % 7, len(rows) - count)
        yield first, first + count


def check_decoded(op: Op, rows: mx.array) -> None:
    """Compare batches `R 1 E` of the rows `N E` with each row alone. `op` returns `R ...`."""
    alone = mx.concatenate([op(rows[i : i + 1, None]) for i in range(len(rows))])
    for first, last in row_ranges(rows):
        together = op(rows[first:last, None])
        assert same_bits(together, alone[first:last]), (first, last)


def check_prompt(op: Op, rows: mx.array) -> None:
    """Compare parts `1 T E` of a prompt with the whole prompt. `op` keeps tokens on axis 1."""
    text = op(rows[None])
    for first, last in row_ranges(rows):
        if last - first > 1:  # without a phase, a single token is a decode step
            part = op(rows[None, first:last])
            assert same_bits(part, text[:, first:last]), (first, last)


def weight(shape: tuple[int, ...], dtype: mx.Dtype, form: WeightFormat | None) -> Weight:
    w = normal(shape, dtype, seed=2)
    return w if form is None else quantize(w, form[2], form[1], form[0])


@pytest.mark.parametrize("check", [check_decoded, check_prompt])
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_linear(
    ops: OpSet,
    dtype: mx.Dtype,
    form: WeightFormat | None,
    check: Callable[[Op, mx.array], None],
) -> None:
    w, bias = weight((45, 256), dtype, form), normal((45,), dtype, seed=3)
    check(lambda x: ops.linear(x, w, bias), normal((100, 256), dtype, seed=1))
    odd = normal((45, 257), dtype, seed=4)
    check(lambda x: ops.linear(x, odd), normal((100, 257), dtype, seed=5))


@pytest.mark.parametrize("check", [check_decoded, check_prompt])
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_expert_linear(
    ops: OpSet,
    dtype: mx.Dtype,
    form: WeightFormat | None,
    check: Callable[[Op, mx.array], None],
) -> None:
    w = weight((3, 27, 128), dtype, form)

    def second_expert(x: mx.array) -> mx.array:
        return ops.expert_linear(x, w, mx.full(x.shape[:-1], 1, mx.int32))

    check(second_expert, normal((100, 128), dtype, seed=1))


@pytest.mark.parametrize("check", [check_decoded, check_prompt])
@pytest.mark.parametrize("width", [128, 90])
def test_ops_of_rows(
    ops: OpSet, dtype: mx.Dtype, width: int, check: Callable[[Op, mx.array], None]
) -> None:
    rows, weight = normal((100, width), dtype, seed=1), normal((width,), dtype, seed=2)
    check(lambda x: ops.rms_norm(x, weight), rows)
    check(lambda x: ops.swiglu(x, x * 2), rows)
    check(lambda x: ops.rope(x[:, :, None], mx.full(x.shape[:2], 5, mx.int32)), rows)
    table = quantize(normal((100, 128), dtype, seed=3), 32, 4)
    ids = mx.arange(100)[:, None]
    check(lambda x: ops.embedding(x[..., 0], table), ids)


@pytest.mark.parametrize("kind", ["dense", "paged"])
@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "qwen3_moe"])
def test_chunks_of_a_prompt(
    ops: OpSet, dtype: mx.Dtype, family: Family, form: WeightFormat | None, kind: str
) -> None:
    """The last token of a prompt has the same bits in a chunk of its own, and in a long chunk."""
    shape = LayerShape(family, form, width=128, heads=4, kv_heads=2, head_dim=32, hidden=192)
    length = 40
    stack = make_stack(make_layers(shape, 2, dtype, ops), ops)
    prompt = normal((1, length, shape.width), dtype, seed=6)

    def output(edges: Sequence[int]) -> mx.array:
        sizes = (3, shape.kv_heads, PAGE, shape.head_dim)
        caches: list[LayerCache] = [
            DenseCache() if kind == "dense" else PagedCache.empty(sizes, dtype) for _ in range(2)
        ]
        parts = []
        for first, last in pairwise(edges):
            batch = Batch.at(first, 1, last - first, "prefill")
            if kind == "paged":
                table = PageTable.of([([2, 0, 1], first, last)], num_pages=3, page_size=PAGE)
                batch = Batch.paged(table, "prefill")
            parts.append(stack(prompt[:, first:last], batch, caches))
            mx.eval(parts)
        return mx.concatenate(parts, axis=1)

    whole = output([0, length])
    for edges in ([0, length - 1, length], [0, 1, 18, 36, length], range(length + 1)):
        assert same_bits(output(edges), whole), edges


PAGE, LENGTHS = 16, [1, 2, 5, 17, 33, 1, 40]


def pass_of(chosen: list[int], start: dict[int, int], stop: dict[int, int]) -> PageTable:
    """Return the page table of a pass. Sequence i has pages 3 i to 3 i + 2 in every pass."""
    chunks = [(range(3 * i, 3 * i + 3), start[i], stop[i]) for i in chosen]
    return PageTable.of(chunks, num_pages=3 * len(LENGTHS), page_size=PAGE)


@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize("form", [None, ("affine", 4, 32), ("affine", 8, 32)], ids=str)
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "qwen3_moe"])
def test_sequences_in_pages(
    ops: OpSet, dtype: mx.Dtype, family: Family, form: WeightFormat | None, bits: int | None
) -> None:
    """Each sequence has two passes: its prompt, and one decode step."""
    shape = LayerShape(family, form)
    stack = make_stack(make_layers(shape, 2, dtype, ops), ops)
    sizes = (3 * len(LENGTHS), shape.kv_heads, PAGE, shape.head_dim)
    every = list(range(len(LENGTHS)))
    begin, middle = dict.fromkeys(every, 0), dict(enumerate(LENGTHS))
    end = {i: length + 1 for i, length in middle.items()}
    texts = [normal((length + 1, 64), dtype, seed=i) for i, length in middle.items()]

    def outputs(chosen: list[int]) -> dict[int, tuple[mx.array, mx.array]]:
        """Return the outputs of both passes for each sequence, by the index of the sequence."""
        caches: list[LayerCache] = [
            PagedCache.empty(sizes, dtype, bits=bits, group_size=32) for _ in range(2)
        ]
        prompts = mx.concatenate([texts[i][:-1] for i in chosen])[None]
        batch = Batch.paged(pass_of(chosen, begin, middle), "prefill")
        read = stack(prompts, batch, caches)[0]
        batch = Batch.paged(pass_of(chosen, middle, end), "decode")
        steps = stack(mx.stack([texts[i][-1:] for i in chosen]), batch, caches)
        edges = [sum(LENGTHS[i] for i in chosen[:n]) for n in range(len(chosen) + 1)]
        return {i: (read[edges[n] : edges[n + 1]], steps[n]) for n, i in enumerate(chosen)}

    together, backwards = outputs(every), outputs(every[::-1])
    for i in every:
        alone = outputs([i])[i]
        for made in (together[i], backwards[i]):
            assert all(same_bits(a, b) for a, b in zip(made, alone, strict=True))
