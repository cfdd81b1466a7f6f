"""Indices outside of an array are clamped, ignored or refused. No kernel reads or writes there.

The tests call the extension directly, because the checks of the OpSet refuse such indices.
"""

import threading
import time
from collections.abc import Callable
from types import ModuleType

import mlx.core as mx
import pytest
from tinyllm_kernels.cpu.arguments import native_weight as weight
from tinyllm_ops import quantize
from tinyllm_ops.testing import normal

FAR = [2**31 - 1, -(2**31)]
WIDTH, HEADS, DIM, PAGE = 64, 2, 32, 4


def integers(*values: int) -> mx.array:
    """Return the numbers as an int32 array."""
    return mx.array(values, mx.int32)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("page", [*FAR, 3, -1])
def test_pages_of_a_block_table_are_clamped(native: ModuleType, page: int, phase: str) -> None:
    q = normal((5, HEADS, DIM), seed=1)
    k, v = (weight(normal((3, HEADS, PAGE, DIM), seed=seed)) for seed in (2, 3))

    def attend(page: int) -> mx.array:
        table = integers(1, page)[None]
        return native.paged_attention(q, k, v, table, integers(0, 5), integers(8), 0.2, 0, phase)

    assert mx.array_equal(attend(page), attend(min(max(page, 0), 2))).item()


def test_without_pages_nothing_is_read(native: ModuleType) -> None:
    q, empty = normal((5, HEADS, DIM), seed=1), weight(mx.zeros((0, HEADS, PAGE, DIM)))
    where = (integers(0, 1)[None], integers(0, 5), integers(8))
    assert not native.paged_attention(q, empty, empty, *where, 0.2, 0).any().item()


@pytest.mark.parametrize("lengths", [FAR, FAR[::-1]])
def test_lengths_of_requests_are_clamped(native: ModuleType, lengths: list[int]) -> None:
    q = normal((5, HEADS, DIM), seed=1)
    k, v = (weight(normal((3, HEADS, PAGE, DIM), seed=seed)) for seed in (2, 3))
    table = integers(0, 1, 2)[None]
    first, last = lengths
    y = native.paged_attention(q, k, v, table, integers(first, last), integers(last), 0.2, 0)
    assert mx.isfinite(y).all().item()


@pytest.mark.parametrize("bits", [None, 4])
def test_experts_are_clamped(native: ModuleType, bits: int | None) -> None:
    stack = normal((3, 16, 64), seed=2)
    w = weight(stack if bits is None else quantize(stack, 32, bits))
    x = normal((4, 64), seed=1)
    y = native.expert_linear(x, w, integers(0, 2, *FAR))
    assert mx.array_equal(y, native.expert_linear(x, w, integers(0, 2, 2, 2))).item()


def test_ids_of_log_probabilities_are_clamped(native: ModuleType) -> None:
    x = normal((2, 50), seed=1)
    y = native.log_probability(x, mx.stack([integers(49, 50, -1), integers(49, *FAR)]))
    assert mx.array_equal(y, mx.repeat(y[:, :1], 3, axis=1)).item()


def norm_of(width: int) -> tuple[mx.array, float]:
    """Weight and epsilon of an RMSNorm."""
    return mx.ones(width), 1e-6


def one_layer(native: ModuleType) -> object:
    """A group of one layer."""
    square = weight(normal((WIDTH, WIDTH), seed=4) / 8)
    mlp = native.mlp_handle(norm_of(WIDTH), square, square, square, adds_residual=True)
    return native.layer_group([(attention_weights(native), mlp)])


def attention_weights(native: ModuleType) -> object:
    """A native handle of attention."""
    q, k, v, o = ((weight(normal((WIDTH, WIDTH), seed=seed) / 8), None) for seed in range(4))
    return native.AttentionHandle(
        norm_of(WIDTH),
        *(q, k, v, o),
        head_dim=DIM,
        rope=(mx.ones(DIM // 2), False, 1.0),
        q_norm=None,
        k_norm=None,
    )


@pytest.mark.parametrize("slot", [*FAR, -1, 3 * PAGE])
def test_slots_outside_of_the_pages_are_not_written(native: ModuleType, slot: int) -> None:
    before = [normal((3, HEADS, PAGE, DIM), seed=seed) for seed in (2, 3)]
    where = (integers(0)[None], integers(0, 2), integers(2), integers(0, 1), integers(1, slot))
    x = normal((1, 2, WIDTH), seed=1)
    _, *after = native.paged_layers(x, one_layer(native), before, (0, 0), where, 0)
    for old, new in zip(before, after, strict=True):
        changed = (old != new).any(axis=(1, 3)).flatten()
        assert changed.tolist() == [n == 1 for n in range(3 * PAGE)]


@pytest.mark.parametrize(
    ("length", "offset", "complaint"), [(3, 6, "offset"), (1, -1, "offset"), (9, 0, "offset")]
)
def test_tokens_beyond_the_end_of_a_cache_are_refused(
    native: ModuleType, length: int, offset: int, complaint: str
) -> None:
    stores = [mx.zeros((1, 2, HEADS, 8, DIM))]  # keys and values
    x = mx.zeros((1, length, WIDTH))
    with pytest.raises(ValueError, match=f"{complaint}: expected capacity in the caches"):
        native.layers(x, one_layer(native), stores, offset)


def test_arrays_of_a_pass_that_are_too_short_are_refused(native: ModuleType) -> None:
    group, x = one_layer(native), mx.zeros((1, 2, WIDTH))
    stores = [mx.zeros((3, HEADS, PAGE, DIM)) for _ in range(2)]
    right = (integers(0)[None], integers(0, 2), integers(2), integers(0, 1), integers(1, 2))
    for i in range(1, 5):
        where = [part[:-1] if j == i else part for j, part in enumerate(right)]
        with pytest.raises(ValueError, match="expected"):
            native.paged_layers(x, group, stores, (0, 0), tuple(where), 0)
    wrong = tuple(part.astype(mx.int8) for part in right)
    with pytest.raises(ValueError, match="pages: expected arrays of int32"):
        native.paged_layers(x, group, stores, (0, 0), wrong, 0)
    with pytest.raises(ValueError, match="caches: expected"):
        native.paged_layers(x, group, stores[:1], (0, 0), right, 0)
    with pytest.raises(ValueError, match="positions: expected"):
        native.project_qkv(x, attention_weights(native), integers(0)[None])


def slow_weight() -> mx.array:
    """A weight that takes some tenths of a second to compute."""
    x = normal((900, 900), seed=1)
    return (x @ x)[:WIDTH, :WIDTH] / 900


def progress_during(call: Callable[[], object]) -> int:
    """Return the number of steps of 1 ms that another Python thread makes during a call."""
    steps, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            steps[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = steps[0]
        call()
        return steps[0] - before
    finally:
        stop.set()
        thread.join()


def test_weights_are_evaluated_without_the_interpreter_lock(native: ModuleType) -> None:
    w, slow = weight(mx.ones((WIDTH, WIDTH))), slow_weight()
    norm = norm_of(WIDTH)
    assert progress_during(lambda: native.mlp_handle(norm, w, w, weight(slow), False)) > 5
    slow = slow_weight()
    assert progress_during(lambda: native.use_huge_pages(slow)) > 5


def test_experts_that_do_not_exist_cannot_be_chosen(native: ModuleType) -> None:
    router, stack = weight(mx.ones((3, WIDTH))), weight(mx.ones((3, WIDTH, WIDTH)))
    for chosen in (0, 4):
        with pytest.raises(ValueError, match="experts_per_token: expected"):
            native.moe_handle(norm_of(WIDTH), router, stack, stack, stack, chosen, True)
