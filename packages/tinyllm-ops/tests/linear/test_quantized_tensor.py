import mlx.core as mx
import numpy as np
import pytest
from tinyllm_ops import QuantizationMode, QuantizedTensor, quantize
from tinyllm_ops.testing import exact, normal

WORDS, ONES, BYTES = mx.zeros((3, 16), mx.uint32), mx.ones((3, 2)), mx.ones((3, 4), mx.uint8)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((WORDS.astype(mx.int32), ONES, ONES), r"packed: expected dtype uint32, got .*int32"),
        ((WORDS, ONES[:, :1], ONES), r"scales: expected shape \(3, 2\) .*, got \(3, 1\)"),
        ((WORDS, ONES[:2], ONES), r"scales: expected shape \(3, 2\) .*, got \(2, 2\)"),
        ((WORDS, ONES, ONES[:, :1]), r"biases: expected shape \(3, 2\), got \(3, 1\)"),
        (
            (mx.array(0, mx.uint32), ONES, ONES),
            r"packed: expected shape \(\.\.\., words\), got \(\)",
        ),
        ((WORDS, ONES, ONES.astype(mx.bfloat16)), r"biases: expected dtype .*float32, as the sc"),
        ((WORDS, BYTES[:, :2], BYTES[:, :2]), r"scales: expected float32, float16 or bfloat16"),
        ((WORDS, BYTES + 0.5, None, 32, 4, "mxfp4"), r"scales: expected dtype uint8, got .*float"),
        ((WORDS, ONES, None), r"biases: mode 'affine' has biases"),
        ((WORDS, ONES, ONES, 64, 3), r"packed: 16 words do not hold a whole number of 3-bit codes"),
        ((WORDS[:, :12], ONES, ONES), r"scales: expected shape \(3, 1\) for \(3, 96\) in groups"),
        ((WORDS, BYTES, BYTES, 32, 4, "mxfp4"), r"biases: mode 'mxfp4' has no biases"),
        ((WORDS, BYTES, None, 64, 4, "mxfp4"), r"mxfp4 means 4 bits in groups of 32"),
        ((WORDS, ONES, ONES, 64, 4, "q4"), r"mode: expected one of affine, .*, got 'q4'"),
        # Orders of other libraries: scales first, the group size second, the codes last.
        ((ONES, ONES, 64, 4, WORDS), r"biases: expected array or None, got int: the order is pack"),
        ((ONES, ONES, WORDS, 64, 4), r"packed: expected dtype uint32, got .*float32"),
        ((WORDS, 64, 4, ONES, ONES), r"scales: expected array, got int: the order is packed, scal"),
        ((WORDS, ONES, 64, 4), r"biases: expected array or None, got int: the order is packed"),
        ((WORDS, ONES, ONES, "affine", 4, 64), r"group_size: expected int, got str: the order is"),
        ((WORDS, ONES, ONES, 64, "affine", 4), r"bits: expected int, got str: the order is packed"),
        ((WORDS, ONES, ONES, 64, 4, 4), r"mode: expected str, got int: the order is packed"),
    ],
)
def test_refuses_parts_that_do_not_fit_together(
    unchecked: None, parts: tuple[mx.array, ...], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        QuantizedTensor(*parts)  # type: ignore[arg-type]


def test_knows_its_shape_and_its_bytes() -> None:
    q = quantize(normal((3, 5, 128), mx.bfloat16, seed=1), 64, 4)
    assert q.shape == (3, 5, 128)
    assert q.nbytes == 3 * 5 * (128 // 2 + 2 * 2 + 2 * 2)  # codes, scales, biases
    assert len(q.arrays) == 3
    assert quantize(normal((3, 64), seed=1), 32, 4, "mxfp4").nbytes == 3 * (64 // 2 + 2)


@pytest.mark.parametrize("mode", ["affine", "mxfp4"])
@pytest.mark.parametrize("index", [np.s_[1], np.s_[1:3], np.s_[:, 2], np.s_[0, 1:], [2, 0, 2]])
def test_selects_along_its_leading_axes(mode: QuantizationMode, index: object) -> None:
    q = quantize(normal((3, 4, 64), seed=1), 32, 4, mode)
    chosen = q[mx.array(index) if isinstance(index, list) else index]
    assert np.array_equal(exact(chosen), exact(q)[index])  # type: ignore[call-overload]
    assert (chosen.group_size, chosen.bits, chosen.mode) == (32, 4, mode)
