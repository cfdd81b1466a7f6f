"""What becomes of a row is the same, to the last bit, whatever other rows are beside it.

Many requests are computed together, and each of them gets what it would get alone. Tokens that
are decoded stand in rows of their own, `R 1 E`, and those of a prompt side by side, `1 T E`: two
ways of rounding, but in each of them no row knows how many there are.
"""

from collections.abc import Callable, Iterator

import mlx.core as mx
import pytest
from tinyllm_ops import OpSet, Weight, quantize
from tinyllm_ops.testing import normal
from tinyllm_ops.testing.blocks import attention_block, mlp_block

COUNTS = [1, 2, 3, 16, 17, 33, 100]
FORMATS = [None, ("affine", 4, 64), ("affine", 8, 32), ("affine", 3, 32), ("mxfp4", 4, 32)]
Op = Callable[[mx.array], mx.array]


def bits(y: mx.array) -> mx.array:
    """Numbers as they lie in memory: zero is not minus zero."""
    return y.view(mx.uint32 if y.dtype == mx.float32 else mx.uint16)


def companies(rows: mx.array) -> Iterator[tuple[int, int]]:
    """First and last of some rows that stand together, none of them always in the same place."""
    for count in COUNTS:
        first = min(count % 7, len(rows) - count)
        yield first, first + count


def check_decoded(op: Op, rows: mx.array) -> None:
    """Rows `N E` in company `R 1 E`, of which op makes `R ...`, against each alone."""
    alone = mx.concatenate([op(rows[i : i + 1, None]) for i in range(len(rows))])
    for first, last in companies(rows):
        together = op(rows[first:last, None])
        assert mx.array_equal(bits(together), bits(alone[first:last])), (first, last)


def check_prompt(op: Op, rows: mx.array) -> None:
    """Rows `N E` in shorter texts `1 T E` against the longest, whose tokens op leaves on axis 1."""
    text = op(rows[None])
    for first, last in companies(rows):
        if last - first > 1:  # a single token counts as decoded
            part = op(rows[None, first:last])
            assert mx.array_equal(bits(part), bits(text[:, first:last])), (first, last)


def weight(shape: tuple[int, ...], dtype: mx.Dtype, form: tuple[str, int, int] | None) -> Weight:
    w = normal(shape, dtype, seed=2)
    return w if form is None else quantize(w, form[2], form[1], form[0])


@pytest.mark.parametrize("check", [check_decoded, check_prompt])
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_of_a_product(
    ops: OpSet,
    dtype: mx.Dtype,
    form: tuple[str, int, int] | None,
    check: Callable[[Op, mx.array], None],
) -> None:
    w, bias = weight((45, 256), dtype, form), normal((45,), dtype, seed=3)
    check(lambda x: ops.linear(x, w, bias), normal((100, 256), dtype, seed=1))
    odd = normal((45, 257), dtype, seed=4)
    check(lambda x: ops.linear(x, odd), normal((100, 257), dtype, seed=5))


@pytest.mark.parametrize("check", [check_decoded, check_prompt])
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_of_a_product_with_an_expert(
    ops: OpSet,
    dtype: mx.Dtype,
    form: tuple[str, int, int] | None,
    check: Callable[[Op, mx.array], None],
) -> None:
    w = weight((3, 27, 128), dtype, form)

    def second_expert(x: mx.array) -> mx.array:
        return ops.expert_linear(x, w, mx.full(x.shape[:-1], 1, mx.int32))

    check(second_expert, normal((100, 128), dtype, seed=1))


@pytest.mark.parametrize("check", [check_decoded, check_prompt])
@pytest.mark.parametrize("width", [None, 4, 8])
def test_of_an_mlp(
    ops: OpSet, dtype: mx.Dtype, width: int | None, check: Callable[[Op, mx.array], None]
) -> None:
    block = mlp_block(128, 256, dtype, width)
    check(lambda x: ops.mlp_block(x, block), normal((100, 128), dtype, seed=1))


@pytest.mark.parametrize("check", [check_decoded, check_prompt])
@pytest.mark.parametrize("width", [None, 4, 8])
def test_of_the_two_ends_of_attention(
    ops: OpSet, dtype: mx.Dtype, width: int | None, check: Callable[[Op, mx.array], None]
) -> None:
    block = attention_block(128, 4, 2, 32, dtype, bits=width, normed=True, biased=True)

    def ends(x: mx.array) -> mx.array:
        # The same position for each token, since a row's own place in a company varies here.
        where = mx.full(x.shape[:2], 7, mx.int32)
        q, k, v = ops.attention_inputs(x, block, where)
        y = ops.attention_output(x, q, block)
        return mx.concatenate([y, k.swapaxes(1, 2).flatten(2), v.swapaxes(1, 2).flatten(2)], -1)

    check(ends, normal((100, 128), dtype, seed=1))


@pytest.mark.parametrize("check", [check_decoded, check_prompt])
@pytest.mark.parametrize("width", [128, 90])
def test_of_what_is_no_product(
    ops: OpSet, dtype: mx.Dtype, width: int, check: Callable[[Op, mx.array], None]
) -> None:
    rows, weight = normal((100, width), dtype, seed=1), normal((width,), dtype, seed=2)
    check(lambda x: ops.rms_norm(x, weight), rows)
    check(lambda x: ops.swiglu(x, x * 2), rows)
    check(lambda x: ops.rope(x[:, :, None], mx.full(x.shape[:2], 5, mx.int32)), rows)
    table = quantize(normal((100, 128), dtype, seed=3), 32, 4)
    ids = mx.arange(100)[:, None]
    check(lambda x: ops.embedding(x[..., 0], table), ids)
