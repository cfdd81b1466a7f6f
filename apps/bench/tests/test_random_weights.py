"""Random weights: finite small numbers in every format, which MLX reads alike."""

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_bench.models.model import BenchModel
from tinyllm_bench.models.random_weights import random_floats, random_quantized, random_weights
from tinyllm_bench.models.weight_format import WeightFormat
from tinyllm_bench.settings import Settings
from tinyllm_bench.shapes import published_config
from tinyllm_cli.messages import UsageError
from tinyllm_ops import MLX, REFERENCE, QuantizedTensor
from tinyllm_qwen import Qwen, QwenConfig
from tinyllm_qwen.checkpoint.schema import expected_shapes

FORMATS = [
    *((bits, 64, "affine") for bits in (2, 3, 4, 5, 6, 8)),
    (4, 32, "mxfp4"),
    (8, 32, "mxfp8"),
    (4, 16, "nvfp4"),
]


@pytest.mark.parametrize(("bits", "group_size", "mode"), FORMATS)
def test_quantized_numbers_are_small_and_spread(bits: int, group_size: int, mode: str) -> None:
    weight_format = WeightFormat.choose(bits, group_size, mode, "float32", prefers_16_bits=False)
    w = random_quantized((64, 256), weight_format, np.random.default_rng(0))
    assert isinstance(w, QuantizedTensor)
    assert w.nbytes == weight_format.nbytes((64, 256))
    numbers = np.array(
        mx.dequantize(
            w.packed, w.scales, w.biases, group_size=group_size, bits=bits, mode=mode
        ).astype(mx.float32)
    )
    assert np.isfinite(numbers).all()
    assert np.abs(numbers).max() < 0.0323
    assert 0.003 < numbers.std() < 0.03
    assert abs(numbers.mean()) < 0.001


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_floats_are_small_and_spread(dtype: mx.Dtype) -> None:
    x = random_floats((64, 255), dtype, np.random.default_rng(0))
    numbers = np.array(x.astype(mx.float32))
    assert (x.dtype, numbers.shape) == (dtype, (64, 255))
    assert np.abs(numbers).min() >= 2**-6
    assert np.abs(numbers).max() < 2**-5
    assert abs(numbers.mean()) < 0.001


@pytest.mark.parametrize(("bits", "dtype"), [(4, "float32"), (32, "float32"), (16, "bfloat16")])
def test_opsets_compute_the_same_numbers_from_random_weights(bits: int, dtype: str) -> None:
    config = QwenConfig.from_hf(published_config("pico"))
    weight_format = WeightFormat.choose(bits, 64, "affine", dtype, prefers_16_bits=False)
    weights = random_weights(config, weight_format)
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    assert shapes == expected_shapes(config)
    assert sum(w.nbytes for w in weights.values()) == sum(
        map(weight_format.nbytes, shapes.values())
    )
    tokens = mx.array([[1, 2, 3]])
    one, two = (
        np.array(Qwen(config, weights, ops=ops)(tokens).astype(mx.float32))
        for ops in (REFERENCE, MLX)
    )
    assert np.isfinite(one).all()
    assert np.abs(one - two).max() < (0.05 if bits == 16 else 1e-4) * np.abs(one).max()


def test_the_dtype_follows_the_ops_and_the_width() -> None:
    chosen = {
        (bits, fast): WeightFormat.choose(bits, 64, "affine", "auto", prefers_16_bits=fast).dtype
        for bits in (4, 16, 32)
        for fast in (False, True)
    }
    assert chosen == {
        (4, False): mx.float32,
        (4, True): mx.bfloat16,
        (16, False): mx.bfloat16,
        (16, True): mx.bfloat16,
        (32, False): mx.float32,
        (32, True): mx.float32,
    }


@pytest.mark.parametrize("model", [None, "pico"])
@pytest.mark.parametrize(
    ("ops", "peer", "gpu", "dtype"),
    [
        (["cpu"], "llama.cpp", False, mx.bfloat16),
        (["cpu"], "mlx-lm", False, mx.float32),
        (["cpu", "cpu-int8"], None, False, mx.bfloat16),
        (["cpu", "mlx"], None, False, mx.float32),
        (["reference"], None, False, mx.float32),
        ([], None, False, mx.float32),
        (["mlx"], "mlx-lm", True, mx.bfloat16),
    ],
)
def test_only_mlx_on_a_cpu_is_measured_in_float32(
    monkeypatch: pytest.MonkeyPatch,
    model: str | None,
    ops: list[str],
    peer: str | None,
    gpu: bool,
    dtype: mx.Dtype,
) -> None:
    monkeypatch.setattr("tinyllm_bench.models.model.on_gpu", lambda: gpu)
    peers = [] if peer is None else [peer]
    settings = Settings(model=model, ops=ops, peers=bool(peers), peer=peers)
    assert BenchModel.make(settings).format.dtype == dtype


@pytest.mark.parametrize(
    ("bits", "group_size", "mode", "dtype", "says"),
    [
        (7, 64, "affine", "auto", "got 7"),
        (4, 48, "affine", "auto", "got 48"),
        (4, 64, "mxfp4", "auto", "groups of 32"),
        (16, 64, "affine", "float32", "16 bits with --bits 16, got float32"),
        (32, 64, "affine", "float16", "32 bits with --bits 32, got float16"),
    ],
)
def test_an_unknown_format_is_refused(
    bits: int, group_size: int, mode: str, dtype: str, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        WeightFormat.choose(bits, group_size, mode, dtype, prefers_16_bits=False)


@pytest.mark.parametrize(("bits", "group_size", "mode"), [(4, 64, "affine"), *FORMATS[-3:]])
def test_a_mode_alone_chooses_its_bits_and_groups(bits: int, group_size: int, mode: str) -> None:
    given = WeightFormat.choose(bits, group_size, mode, "auto", prefers_16_bits=False)
    assert WeightFormat.choose(None, None, mode, "auto", prefers_16_bits=False) == given


def test_rows_that_groups_do_not_divide_are_refused() -> None:
    weight_format = WeightFormat.choose(4, 128, "affine", "auto", prefers_16_bits=False)
    with pytest.raises(UsageError, match=r"--group-size: expected a divisor of 192, .* got 128"):
        weight_format.nbytes((8, 192))
