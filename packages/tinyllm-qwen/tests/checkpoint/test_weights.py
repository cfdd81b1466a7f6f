"""Weights are read as they were written, or the error names the wrong tensor."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from tinyllm_ops import MLX, REFERENCE, QuantizedTensor
from tinyllm_qwen.checkpoint.schema import expected_shapes
from tinyllm_qwen.checkpoint.weights import load_weights
from tinyllm_qwen.errors import CheckpointError
from tinyllm_qwen.model import Qwen

MakeCheckpoint = Callable[..., Any]
PROJECTIONS = [f"self_attn.{name}_proj" for name in "qkvo"] + [
    f"mlp.{name}_proj" for name in ("gate", "up", "down")
]
MATRICES = [
    "embed_tokens",
    *(f"layers.{layer}.{name}" for layer in range(2) for name in PROJECTIONS),
]
FLOAT_FORMATS = [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("prefix", ["model.", ""])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_every_tensor_comes_back_as_it_was_written(
    random_checkpoint: MakeCheckpoint, family: str, tied: bool, prefix: str, shards: int
) -> None:
    made = random_checkpoint(family, tie_word_embeddings=tied).fill()
    made.save(prefix=prefix, shards=shards)
    weights = load_weights(made.folder, made.config)
    assert weights.keys() == made.tensors.keys()
    assert ("lm_head.weight" in weights) is not tied
    for name, tensor in made.tensors.items():
        assert weights[name].dtype == tensor.dtype
        assert mx.array_equal(weights[name], tensor)  # type: ignore[arg-type]


@pytest.mark.parametrize(("mode", "bits", "group_size"), FLOAT_FORMATS)
@pytest.mark.parametrize("dtype", [None, mx.float32])
def test_float_formats_have_byte_scales_and_no_biases(
    random_checkpoint: MakeCheckpoint, mode: str, bits: int, group_size: int, dtype: mx.Dtype | None
) -> None:
    table = {"group_size": group_size, "bits": bits, "mode": mode}
    made = random_checkpoint(quantization=table).fill()
    made.quantize(MATRICES, group_size, bits, mode).save()
    weights = load_weights(made.folder, made.config, dtype=dtype)
    for path in MATRICES:
        weight = weights[f"{path}.weight"]
        assert isinstance(weight, QuantizedTensor)
        assert (weight.mode, weight.biases) == (mode, None)
        assert mx.array_equal(weight.packed, made.tensors[f"{path}.weight"])
        assert mx.array_equal(weight.scales, made.tensors[f"{path}.scales"])
    assert weights["norm.weight"].dtype == (dtype or mx.bfloat16)


@pytest.mark.parametrize(("mode", "bits", "group_size"), FLOAT_FORMATS)
def test_a_model_with_byte_scales_computes_in_the_dtype_of_its_norms(
    random_checkpoint: MakeCheckpoint, mode: str, bits: int, group_size: int
) -> None:
    table = {"group_size": group_size, "bits": bits, "mode": mode}
    made = random_checkpoint(quantization=table).fill()
    made.quantize(MATRICES, group_size, bits, mode).save()
    for ops in (REFERENCE, MLX):
        model = Qwen(made.config, load_weights(made.folder, made.config), ops=ops)
        assert model(mx.array([[1, 2, 3]])).dtype == mx.bfloat16


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group_size", [32, 64])
def test_quantized_matrices_stay_packed(
    random_checkpoint: MakeCheckpoint, group_size: int, bits: int
) -> None:
    made = random_checkpoint(quantization={"group_size": group_size, "bits": bits}).fill()
    made.quantize(MATRICES, group_size, bits).save()
    weights = load_weights(made.folder, made.config)
    assert weights.keys() == expected_shapes(made.config).keys()
    for path in MATRICES:
        weight = weights[f"{path}.weight"]
        assert isinstance(weight, QuantizedTensor)
        assert weight.shape == expected_shapes(made.config)[f"{path}.weight"]
        assert mx.array_equal(weight.packed, made.tensors[f"{path}.weight"])
        assert mx.array_equal(weight.scales, made.tensors[f"{path}.scales"])
        assert mx.array_equal(weight.biases, made.tensors[f"{path}.biases"])  # type: ignore[arg-type]


def test_layers_may_be_packed_otherwise_or_not_at_all(random_checkpoint: MakeCheckpoint) -> None:
    eight, left, bare = MATRICES[1], MATRICES[2], MATRICES[3]
    table = {
        "group_size": 64,
        "bits": 4,
        f"model.{eight}": {"group_size": 32, "bits": 8},
        f"model.{left}": False,
    }
    made = random_checkpoint(quantization=table).fill()
    made.quantize([eight], 32, 8).quantize(
        [path for path in MATRICES if path not in (eight, left, bare)], 64, 4
    )
    weights = load_weights(made.save().folder, made.config)
    assert (weights[f"{eight}.weight"].bits, weights[f"{eight}.weight"].group_size) == (8, 32)
    # MLX also loads a matrix without scales as unquantized, without an error.
    for path in (left, bare):
        assert mx.array_equal(weights[f"{path}.weight"], made.tensors[f"{path}.weight"])  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_a_dtype_casts_everything_but_the_codes(
    random_checkpoint: MakeCheckpoint, dtype: mx.Dtype
) -> None:
    made = random_checkpoint(quantization={"group_size": 32, "bits": 4}).fill()
    made.quantize(MATRICES[1:], 32, 4).save()
    weights = load_weights(made.folder, made.config, dtype=dtype)
    for name, weight in weights.items():
        if isinstance(weight, QuantizedTensor):
            assert weight.packed.dtype == mx.uint32
            assert (weight.scales.dtype, weight.biases.dtype) == (dtype, dtype)
        else:
            assert mx.array_equal(weight, made.tensors[name].astype(dtype))
            assert weight.dtype == dtype


@pytest.mark.parametrize("other", [mx.float16, mx.float32])
def test_files_of_several_dtypes_load_in_that_of_most_bytes(
    random_checkpoint: MakeCheckpoint, other: mx.Dtype
) -> None:
    made = random_checkpoint().fill(mx.bfloat16)
    made.tensors["norm.weight"] = made.tensors["norm.weight"].astype(other)
    weights = load_weights(made.save().folder, made.config)
    assert {weight.dtype for weight in weights.values()} == {mx.bfloat16}


def test_scales_in_another_dtype_do_not_change_that_of_the_model(
    random_checkpoint: MakeCheckpoint,
) -> None:
    made = random_checkpoint(quantization={"group_size": 64, "bits": 4}).fill(mx.bfloat16)
    made.quantize(MATRICES, 64, 4)
    for name, tensor in made.tensors.items():
        if name.endswith((".scales", ".biases")):  # as AutoRound writes them
            made.tensors[name] = tensor.astype(mx.float16)
    weights = load_weights(made.save().folder, made.config)
    assert weights["norm.weight"].dtype == mx.bfloat16
    packed = weights["embed_tokens.weight"]
    assert isinstance(packed, QuantizedTensor)
    assert packed.scales.dtype == mx.bfloat16


def test_a_dtype_that_is_not_floating_is_refused(random_checkpoint: MakeCheckpoint) -> None:
    made = random_checkpoint().fill().save()
    with pytest.raises(ValueError, match=r"expected float32, float16 or bfloat16, got .*int8"):
        load_weights(made.folder, made.config, dtype=mx.int8)


def test_tensors_that_no_model_needs_are_dropped(random_checkpoint: MakeCheckpoint) -> None:
    made = random_checkpoint().fill()
    shapes = made.tensors.keys() | set()
    made.tensors["layers.0.self_attn.rotary_emb.inv_freq"] = mx.zeros((16,))
    made.tensors["lm_head.weight"] = made.tensors["embed_tokens.weight"]
    assert load_weights(made.save().folder, made.config).keys() == shapes


def test_progress_ends_at_the_size_of_the_data(random_checkpoint: MakeCheckpoint) -> None:
    made = random_checkpoint().fill().save(shards=2)
    calls: list[tuple[int, int]] = []
    load_weights(made.folder, made.config, progress=lambda *call: calls.append(call))
    size = sum(tensor.nbytes for tensor in made.tensors.values())
    assert calls[-1] == (size, size)
    assert calls == sorted(calls)


def test_missing_unexpected_and_wrong_tensors_are_all_named(
    random_checkpoint: MakeCheckpoint,
) -> None:
    made = random_checkpoint().fill()
    del made.tensors["norm.weight"], made.tensors["layers.1.mlp.up_proj.weight"]
    made.tensors["layers.7.mlp.up_proj.weight"] = mx.zeros((2, 2))
    made.tensors["embed_tokens.weight"] = mx.zeros((95, 64))
    made.tensors["layers.0.input_layernorm.weight"] = mx.zeros((64,), dtype=mx.int32)
    made.save()
    with pytest.raises(CheckpointError) as caught:
        load_weights(made.folder, made.config)
    message = str(caught.value)
    for line in (
        "missing (2):\n    layers.1.mlp.up_proj.weight\n    norm.weight",
        "unexpected (1):\n    layers.7.mlp.up_proj.weight",
        "embed_tokens.weight: expected F32/F16/BF16 (96, 64), got F32 (95, 64)",
        "layers.0.input_layernorm.weight: expected F32/F16/BF16 (64,), got I32 (64,)",
    ):
        assert line in message


def test_a_long_list_is_cut_after_ten_and_counted(random_checkpoint: MakeCheckpoint) -> None:
    made = random_checkpoint().fill()
    made.tensors |= {f"extra.{i}": mx.zeros((1,)) for i in range(25)}
    made.save()
    with pytest.raises(CheckpointError, match=r"unexpected \(25\)") as caught:
        load_weights(made.folder, made.config)
    assert str(caught.value).count("extra.") == 10
    assert "and 15 more" in str(caught.value)


def test_a_missing_head_points_to_the_config(random_checkpoint: MakeCheckpoint) -> None:
    made = random_checkpoint(tie_word_embeddings=False).fill()
    del made.tensors["lm_head.weight"]
    with pytest.raises(CheckpointError, match="set tie_word_embeddings to true"):
        load_weights(made.save().folder, made.config)


def test_a_missing_head_of_packed_weights_points_to_the_config_too(
    random_checkpoint: MakeCheckpoint,
) -> None:
    table = {"group_size": 64, "bits": 4}
    made = random_checkpoint(tie_word_embeddings=False, quantization=table).fill()
    made.quantize(MATRICES, 64, 4)
    del made.tensors["lm_head.weight"]
    with pytest.raises(CheckpointError, match="set tie_word_embeddings to true"):
        load_weights(made.save().folder, made.config)


def test_packed_weights_need_a_config_that_says_how(random_checkpoint: MakeCheckpoint) -> None:
    made = random_checkpoint().fill().quantize(MATRICES, 64, 4).save()
    with pytest.raises(CheckpointError, match=r"config\.json has no quantization"):
        load_weights(made.folder, made.config)


@pytest.mark.parametrize(("mode", "bits", "group_size"), [("affine", 8, 32), *FLOAT_FORMATS])
def test_a_matrix_that_the_config_does_not_name_has_the_format_of_its_shapes(
    random_checkpoint: MakeCheckpoint, mode: str, bits: int, group_size: int
) -> None:
    made = random_checkpoint(quantization={"group_size": 64, "bits": 4}).fill()
    made.quantize(MATRICES[1:], 64, 4).quantize(MATRICES[:1], group_size, bits, mode)
    weights = load_weights(made.save().folder, made.config)
    for path, expected in (
        (MATRICES[0], (mode, bits, group_size)),
        (MATRICES[1], ("affine", 4, 64)),
    ):
        weight = weights[f"{path}.weight"]
        assert isinstance(weight, QuantizedTensor)
        assert (weight.mode, weight.bits, weight.group_size) == expected


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"group_size": 64, "bits": 8}, r"weight: expected U32 \(96, 16\), got U32 \(96, 8\)"),
        ({"group_size": 32, "bits": 4}, r"scales: expected F32/F16/BF16 \(96, 2\), got .*1\)"),
        ({"group_size": 128, "bits": 4}, "expected a multiple of 128 columns, got 64"),
    ],
)
def test_packed_weights_that_contradict_the_config_are_named(
    random_checkpoint: MakeCheckpoint, table: dict[str, object], message: str
) -> None:
    named = {"group_size": 64, "bits": 4, "embed_tokens": table} | {
        f"layers.{layer}.{name}": table for layer in range(2) for name in PROJECTIONS
    }
    made = random_checkpoint(quantization=named).fill().quantize(MATRICES, 64, 4).save()
    with pytest.raises(CheckpointError, match=message):
        load_weights(made.folder, made.config)


def test_packed_codes_without_scales_are_named(random_checkpoint: MakeCheckpoint) -> None:
    made = random_checkpoint(quantization={"group_size": 64, "bits": 4}).fill()
    made.quantize(MATRICES, 64, 4)
    del made.tensors["embed_tokens.scales"], made.tensors["embed_tokens.biases"]
    with pytest.raises(CheckpointError, match=r"missing \(2\):\n    embed_tokens.scales\n"):
        load_weights(made.save().folder, made.config)


def test_a_name_in_two_spellings_is_refused(random_checkpoint: MakeCheckpoint) -> None:
    made = random_checkpoint().fill()
    made.tensors["model.norm.weight"] = made.tensors["norm.weight"]
    with pytest.raises(CheckpointError, match=r"norm\.weight occurs twice"):
        load_weights(made.save(prefix="").folder, made.config)


def test_a_missing_shard_is_named(random_checkpoint: MakeCheckpoint) -> None:
    made = random_checkpoint().fill().save(shards=3)
    (made.folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"1 of 3 shards.*model-00002-of-00003"):
        load_weights(made.folder, made.config)


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/x.safetensors", "a/x.safetensors", "x\\y.safetensors", "x", 3]
)
def test_an_index_cannot_name_a_file_outside_the_folder(
    random_checkpoint: MakeCheckpoint, name: object
) -> None:
    made = random_checkpoint().fill()
    index = made.folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight: expected the name of"):
        load_weights(made.folder, made.config)


@pytest.mark.parametrize("weight_map", [None, [], {}, "model.safetensors"])
def test_an_index_without_a_map_is_refused(
    random_checkpoint: MakeCheckpoint, weight_map: object
) -> None:
    made = random_checkpoint()
    index = made.folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match="weight_map: expected file names"):
        load_weights(made.folder, made.config)


@pytest.mark.parametrize(
    ("present", "message"),
    [
        ("pytorch_model.bin", "found pytorch_model.bin: only safetensors"),
        ("qwen.gguf", "found qwen.gguf: only safetensors"),
        ("model-00001-of-00002.safetensors", "download model.safetensors.index.json"),
        ("README.md", "found neither"),
    ],
)
def test_a_folder_without_weights_gets_advice_for_what_it_has(
    random_checkpoint: MakeCheckpoint, present: str, message: str
) -> None:
    made = random_checkpoint()
    (made.folder / present).write_bytes(b"")
    with pytest.raises(CheckpointError, match=message):
        load_weights(made.folder, made.config)


MEASURE = """
import sys
from pathlib import Path
import mlx.core as mx
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.checkpoint.weights import load_weights

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024

folder = Path(sys.argv[1])
config = QwenConfig.from_folder(folder)
mx.eval(mx.zeros((8,)).astype(mx.bfloat16))
before = peak()
weights = load_weights(folder, config, dtype=getattr(mx, sys.argv[2]))
print(peak() - before)
"""


# Only Linux reports the peak memory in /proc. Loading needs the same memory on other systems.
@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM of /proc is Linux's")
@pytest.mark.parametrize(("dtype", "growth"), [("bfloat16", 1), ("float32", 2)])
def test_loading_takes_the_memory_of_the_result_and_one_batch(
    random_checkpoint: MakeCheckpoint, dtype: str, growth: int
) -> None:
    made = random_checkpoint(
        hidden_size=512, intermediate_size=1536, num_hidden_layers=8, vocab_size=16384
    )
    made.fill().save()
    size = sum(tensor.nbytes for tensor in made.tensors.values())
    assert size > 50e6
    command = [sys.executable, "-c", MEASURE, str(made.folder), dtype]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    # A batch ends with the tensor that takes it past 8 MiB, here the embedding of 17 MB. Keeping
    # the originals until the end would cost another `size`.
    assert 0.9 * growth * size < int(result.stdout) < growth * size + 40e6
