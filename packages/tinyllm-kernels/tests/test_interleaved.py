"""Weights with interleaved rows give the same results as the weights in MLX's layout."""

from types import ModuleType

import mlx.core as mx
import pytest
from tinyllm_kernels.cpu.interleaved_tensor import InterleavedTensor
from tinyllm_layers import Backend
from tinyllm_ops import (
    MLX,
    REFERENCE,
    QuantizationMode,
    QuantizedTensor,
    Weight,
    dequantize,
    quantize,
)
from tinyllm_ops.testing import assert_close, exact, normal, oracle

SIXTEEN = [mx.bfloat16, mx.float16]
FORMS: list[tuple[int, int, QuantizationMode]] = [
    *((bits, group, "affine") for bits in (4, 8) for group in (32, 64, 128)),
    (4, 32, "mxfp4"),
    (4, 16, "nvfp4"),
]


def prepared(ops: Backend, w: Weight) -> Weight:
    weights = {"w": w}
    ops.prepare(weights)
    return weights["w"]


def packed(
    shape: tuple[int, ...],
    dtype: mx.Dtype,
    bits: int = 4,
    group: int = 64,
    mode: QuantizationMode = "affine",
) -> Weight:
    return quantize(normal(shape, dtype, seed=2), group, bits, mode)


def same_bits(a: mx.array, b: mx.array) -> bool:
    width = mx.uint32 if a.dtype == mx.float32 else mx.uint16
    return mx.array_equal(a.view(width), b.view(width))  # type: ignore[return-value]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("of_w", SIXTEEN, ids=str)
def test_products_are_those_with_the_plain_weight(
    ops: Backend, dtype: mx.Dtype, of_w: mx.Dtype, form: tuple[int, int, QuantizationMode]
) -> None:
    plain = packed((48, 384), of_w, *form)
    w = prepared(ops, plain)
    for shape in ((1, 1, 384), (9, 1, 384), (1, 5, 384), (1, 70, 384)):
        x = normal(shape, dtype, seed=1)
        y = ops.linear(x, w)
        assert_close(y, oracle.linear(exact(x), exact(plain)))
        assert same_bits(y, ops.linear(x, plain))
    ids = mx.array([[0, 47, 17], [3, 3, 16]])
    assert mx.array_equal(ops.embedding(ids, w), ops.embedding(ids, plain))


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("rows_of_w", [45, 48])  # with 48, rows are interleaved
def test_decode_steps_together_have_the_bits_of_each_alone(
    ops: Backend, dtype: mx.Dtype, rows_of_w: int, form: tuple[int, int, QuantizationMode]
) -> None:
    """The kernel depends on the number of rows: AMX multiplies up to 16 rows together."""
    w = prepared(ops, packed((rows_of_w, 384), mx.bfloat16, *form))
    x, bias = normal((35, 1, 384), dtype, seed=1), normal((rows_of_w,), dtype, seed=3)
    alone = mx.concatenate([ops.linear(x[i : i + 1], w, bias) for i in range(len(x))])
    for rows in (*range(2, 18), 35):
        assert same_bits(ops.linear(x[:rows], w, bias), alone[:rows]), rows


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_prompt_of_any_length_has_the_bits_of_a_longer_one(
    ops: Backend, dtype: mx.Dtype, form: tuple[int, int, QuantizationMode]
) -> None:
    """The kernel depends on the number of tokens: few tokens of bfloat16 have their own."""
    w = prepared(ops, packed((48, 384), mx.bfloat16, *form))
    x, bias = normal((1, 70, 384), dtype, seed=1), normal((48,), dtype, seed=3)
    residual = normal((1, 70, 48), dtype, seed=4)
    whole = ops.linear(x, w, bias, residual, phase="prefill")
    for tokens in range(1, 35):
        y = ops.linear(x[:, :tokens], w, bias, residual[:, :tokens], phase="prefill")
        assert same_bits(y, whole[:, :tokens]), tokens


@pytest.mark.parametrize("form", [(4, 64, "affine"), (8, 64, "affine"), (4, 16, "nvfp4")], ids=str)
def test_experts_are_found(
    ops: Backend, dtype: mx.Dtype, form: tuple[int, int, QuantizationMode]
) -> None:
    plain = packed((3, 32, 128), mx.bfloat16, *form)
    x = normal((5, 1, 128), dtype, seed=1)
    experts = mx.array([[0], [1], [1], [2], [2]])
    y = ops.expert_linear(x, prepared(ops, plain), experts)
    assert same_bits(y, ops.expert_linear(x, plain, experts))


def test_weights_prepared_by_one_instruction_set_work_on_another(
    ops: Backend, native: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens if TINYLLM_CPU_ISA changes in a process that has loaded a model."""
    plain = packed((48, 384), mx.bfloat16)
    for isa in native.instruction_sets():
        with monkeypatch.context() as other:
            other.setenv("TINYLLM_CPU_ISA", isa)
            w = prepared(ops, plain)
        for shape in ((2, 1, 384), (1, 40, 384)):
            x = normal(shape, mx.bfloat16, seed=1)
            assert same_bits(ops.linear(x, w), ops.linear(x, plain))
        ids = mx.array([[0, 47, 17]])
        assert mx.array_equal(ops.embedding(ids, w), ops.embedding(ids, plain))


def test_an_instruction_set_interleaves_the_weights_of_its_integer_products(
    ops: Backend, native: ModuleType
) -> None:
    """Affine weights with scales of 16 bits, mxfp4 and nvfp4, in whole vectors."""
    isa = native.chosen_instruction_set()
    for form in FORMS:
        w = prepared(ops, packed((48, 384), mx.bfloat16, *form))
        assert isinstance(w, InterleavedTensor) == (isa != "portable")
    others: list[Weight] = [
        packed((45, 384), mx.bfloat16),
        packed((48, 96), mx.bfloat16, group=32),
        packed((48, 384), mx.float32),
        normal((48, 384), mx.bfloat16, seed=3),
    ]
    for other in others:
        assert prepared(ops, other) is other


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("bits", [2, 3, 5, 6])
def test_codes_of_other_widths_are_stored_in_4_or_8_bits(
    ops: Backend, native: ModuleType, dtype: mx.Dtype, bits: int, group: int
) -> None:
    plain = packed((3, 48, 384), dtype, bits, group)
    assert isinstance(plain, QuantizedTensor)
    w = prepared(ops, plain)
    if native.chosen_instruction_set() == "portable" or dtype == mx.float32:
        assert w is plain
        return
    assert isinstance(w, InterleavedTensor)
    assert (w.bits, w.shape) == (4 if bits < 4 else 8, plain.shape)
    assert mx.array_equal(dequantize(w), dequantize(plain))
    for shape in ((1, 1, 384), (9, 1, 384), (1, 5, 384), (1, 70, 384)):
        x = normal(shape, dtype, seed=1)
        assert_close(ops.linear(x, w[1]), oracle.linear(exact(x), exact(plain[1])))


def test_a_part_of_a_wider_array_is_widened(ops: Backend) -> None:
    whole = packed((96, 768), mx.bfloat16, 6)
    assert isinstance(whole, QuantizedTensor)
    w = prepared(ops, whole[::2])
    assert isinstance(w, QuantizedTensor)
    assert mx.array_equal(dequantize(w), dequantize(whole[::2]))


@pytest.mark.parametrize("form", [(4, 64, "affine"), (4, 32, "mxfp4")], ids=str)
def test_an_interleaved_tensor_reads_as_the_plain_tensor(
    ops: Backend, native: ModuleType, form: tuple[int, int, QuantizationMode]
) -> None:
    plain = packed((2, 32, 256), mx.bfloat16, *form)
    assert isinstance(plain, QuantizedTensor)
    parts = [native.interleave(part, 8) for part in plain.arrays]
    w = InterleavedTensor(parts, 8, plain.group_size, plain.bits, plain.mode)
    assert (w.shape, w.nbytes, w.bits, w.mode) == (plain.shape, plain.nbytes, 4, form[2])
    for each, expected in ((w, plain), (w.with_arrays(w.arrays), plain), (w[1], plain[1])):
        for part, wanted in zip(each.arrays, expected.arrays, strict=True):
            assert mx.array_equal(part, wanted)
    assert not mx.array_equal(w.interleaved[0], plain.packed)
    x = normal((3, 256), mx.float32, seed=1)
    for others in (MLX, REFERENCE):
        assert mx.array_equal(others.linear(x, w[0]), others.linear(x, plain[0]))


def test_rows_are_interleaved_in_place_unless_the_arrays_are_shared(ops: Backend) -> None:
    plain = packed((4096, 1024), mx.bfloat16)
    mx.eval(plain.arrays)
    before = [mx.array(part) for part in plain.arrays]
    held = prepared(ops, plain)
    for part, was in zip(plain.arrays, before, strict=True):
        assert mx.array_equal(part, was)
    weights: dict[str, Weight] = {"w": plain}
    del plain, before, part, was  # only `weights` holds the parts
    mx.reset_peak_memory()
    active = mx.get_active_memory()
    ops.prepare(weights)
    assert mx.get_peak_memory() - active < 1e5
    assert mx.array_equal(dequantize(weights["w"]), dequantize(held))  # type: ignore[arg-type]


def test_a_prepared_weight_can_be_a_key(ops: Backend) -> None:
    w, other = (prepared(ops, packed((48, 384), mx.bfloat16)) for _ in range(2))
    sizes = {w: 1}
    assert sizes[w] == 1
    assert other not in sizes


def test_preparing_twice_changes_nothing(ops: Backend) -> None:
    w = prepared(ops, packed((48, 384), mx.bfloat16))
    assert prepared(ops, w) is w


@pytest.mark.parametrize("rows", [45, 48])  # with 48, rows are interleaved
@pytest.mark.parametrize(
    "form", [*((bits, 64, "affine") for bits in (2, 3, 4, 5, 6, 8)), (4, 32, "mxfp4")], ids=str
)
def test_the_size_after_preparing_is_known_before(
    ops: Backend, rows: int, form: tuple[int, int, QuantizationMode]
) -> None:
    plain = packed((rows, 384), mx.bfloat16, *form)
    size = ops.prepared_bytes(plain)
    w = prepared(ops, plain)
    assert size == w.nbytes == ops.prepared_bytes(w)
    assert (size > plain.nbytes) is (w.bits > plain.bits)
    assert ops.prepared_bytes(mx.ones((3, 5))) == 60
