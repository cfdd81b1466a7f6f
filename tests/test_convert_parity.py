"""`convert` writes the files of `mlx_lm.convert`, bit for bit, and both projects load them."""

import json
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path

import mlx.core as mx
import mlx_lm
import pytest
from mlx import nn
from mlx_lm.utils import dequantize_model, load_model
from published import FAMILIES, FORMATS, LOGITS, PAIRS, distance, prompt, published
from tinyllm_ops import MLX
from tinyllm_qwen import ConversionConfig, convert, load
from tinyllm_qwen.checkpoint.stored_tensor import is_centred_norm
from tinyllm_qwen.config.module_path import module_path
from tinyllm_qwen.config.quantization import PackedFormat

# A nightly run compares the files of all pairs.
ALL_PAIRS = [
    pytest.param(*pair, marks=() if pair in PAIRS else pytest.mark.exhaustive)
    for pair in product(FAMILIES, FORMATS)
]


def routers_in_8_bits(path: str, _module: nn.Module) -> bool | dict[str, int]:
    """Quantize as mlx-lm does for all families but Qwen2-MoE."""
    is_router = path.endswith(("mlp.gate", "shared_expert_gate"))
    return {"group_size": 64, "bits": 8} if is_router else True


def convert_with_mlx_lm(
    source: Path, target: Path, packed: PackedFormat | None, **options: object
) -> Path:
    """Convert a checkpoint with `mlx_lm.convert`."""
    if json.loads((source / "config.json").read_text())["model_type"] == "qwen2_moe":
        options = {"quant_predicate": routers_in_8_bits} | options
    settings = (
        {}
        if packed is None
        else {"q_group_size": packed.group_size, "q_bits": packed.bits, "q_mode": packed.mode}
    )
    mlx_lm.convert(str(source), str(target), quantize=packed is not None, **settings, **options)
    return target


def tensors(folder: Path) -> dict[str, mx.array]:
    """Return all tensors of a folder."""
    found: dict[str, mx.array] = {}
    for file in folder.glob("*.safetensors"):
        found |= mx.load(str(file))  # type: ignore[arg-type]
    return found


def settings(folder: Path) -> dict[str, object]:
    """Return the config without the end tokens, which mlx-lm copies from the generation config."""
    config = json.loads((folder / "config.json").read_text())
    return {key: value for key, value in config.items() if key != "eos_token_id"}


def assert_same(ours: Path, other: Path, *, cast: bool = False) -> None:
    """Compare two checkpoints. With `cast`, zero-centred norms may differ in their last bit.

    mlx-lm adds 1 in the dtype of the source. tinyllm adds 1 after the cast. mlx-lm casts the decay
    rates of Qwen3-Next, which tinyllm writes in float32 as for Qwen3.5.
    """
    expected = tensors(other)
    decays = {name: array for name, array in expected.items() if name.endswith("A_log")}
    expected |= {name: array.astype(mx.float32) for name, array in decays.items()}
    actual = tensors(ours)
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        assert actual[name].dtype == array.dtype, name
        if cast and is_centred_norm(module_path(name)):
            assert mx.allclose(actual[name], array, rtol=2**-7), name
        else:
            assert mx.array_equal(actual[name], array), name
    assert settings(ours) == settings(other)
    indices = [
        json.loads((folder / "model.safetensors.index.json").read_text())
        for folder in (ours, other)
    ]
    vectors = [array for name, array in expected.items() if name.endswith(("A_log", "dt_bias"))]
    indices[1]["metadata"]["total_size"] += sum(4 * a.size - a.nbytes for a in decays.values())
    # mlx-lm does not count the parameters of modules that have submodules.
    indices[1]["metadata"]["total_parameters"] += sum(array.size for array in vectors)
    assert indices[0] == indices[1]


@pytest.mark.parametrize(("family", "form"), ALL_PAIRS)
def test_files_equal_those_of_mlx_lm(tmp_path: Path, family: str, form: str) -> None:
    source = published(tmp_path / "source", family)
    convert(source, tmp_path / "ours", ConversionConfig(packed=FORMATS[form]))
    assert_same(tmp_path / "ours", convert_with_mlx_lm(source, tmp_path / "theirs", FORMATS[form]))


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_cast_before_they_are_quantized(tmp_path: Path, family: str) -> None:
    source, packed = published(tmp_path / "source", family), FORMATS["4 bits"]
    convert(source, tmp_path / "ours", ConversionConfig(packed=packed, dtype=mx.float16))
    convert_with_mlx_lm(source, tmp_path / "theirs", packed, dtype="float16")
    config = tmp_path / "theirs" / "config.json"  # where mlx-lm leaves "bfloat16"
    config.write_text(config.read_text().replace('"bfloat16"', '"float16"'))
    assert_same(
        tmp_path / "ours", tmp_path / "theirs", cast=family.startswith(("qwen3_5", "qwen3_next"))
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_unchanged_without_a_format(tmp_path: Path, family: str) -> None:
    source = published(tmp_path / "source", family)
    convert(source, tmp_path / "ours")
    assert_same(tmp_path / "ours", convert_with_mlx_lm(source, tmp_path / "theirs", None))


def test_skip_patterns_match_a_predicate_of_mlx_lm(tmp_path: Path) -> None:
    source, packed = published(tmp_path / "source", "qwen2, untied"), FORMATS["4 bits"]
    skip = ("lm_head", "model.layers.0.*")
    done = convert(source, tmp_path / "ours", ConversionConfig(packed=packed, skip=skip))
    assert len(done.unquantized) == 8

    def predicate(path: str, _module: nn.Module) -> bool:
        return not any(fnmatchcase(path, pattern) for pattern in skip)

    assert_same(
        tmp_path / "ours",
        convert_with_mlx_lm(source, tmp_path / "theirs", packed, quant_predicate=predicate),
    )


@pytest.mark.parametrize(("family", "form"), PAIRS)
def test_mlx_lm_loads_converted_files(tmp_path: Path, family: str, form: str) -> None:
    source = published(tmp_path / "source", family)
    config = ConversionConfig(packed=FORMATS[form], dtype=mx.float32, shard_bytes=100_000)
    convert(source, tmp_path / "ours", config)
    assert len(list((tmp_path / "ours").glob("*.safetensors"))) > 2
    expected, *_ = mlx_lm.load(str(tmp_path / "ours"))  # with the copied tokenizer
    model, _ = load(tmp_path / "ours", ops=MLX)
    assert distance(model(prompt()), expected(prompt())) < LOGITS


@pytest.mark.parametrize(("family", "form"), PAIRS)
def test_files_of_mlx_lm_are_loaded(tmp_path: Path, family: str, form: str) -> None:
    source = published(tmp_path / "source", family)
    own = {"dtype": "float32", "quant_predicate": None}  # routers as mlx-lm itself packs them
    convert_with_mlx_lm(source, tmp_path / "theirs", FORMATS[form], **own)
    expected = dequantize_model(load_model(tmp_path / "theirs")[0])
    model, _ = load(tmp_path / "theirs")
    assert distance(model(prompt()), expected(prompt())) < LOGITS
