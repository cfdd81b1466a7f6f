"""Compare `convert` with `mlx_lm.convert`: equal files, bit for bit, that both projects can load.

Also compare `from_mlx_lm` with the model that mlx-lm loaded.
"""

import json
import shutil
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from mlx import nn
from mlx_lm.models.switch_layers import SwitchLinear
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import dequantize_model, load_model
from tinyllm_ops import MLX, REFERENCE, QuantizedTensor
from tinyllm_qwen import (
    CheckpointError,
    ConversionConfig,
    Qwen,
    QwenConfig,
    convert,
    from_mlx_lm,
    load,
)
from tinyllm_qwen.checkpoint.schema import expected_shapes
from tinyllm_qwen.checkpoint.stored_tensor import is_centred_norm
from tinyllm_qwen.config.module_path import module_path
from tinyllm_qwen.config.quantization import PackedFormat

LOGITS = 1e-4  # relative to the largest logit, float32
TOKENIZER = Path(__file__).parents[1] / "packages/tinyllm-qwen/tests/goldens/qwen3"
SHAPE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "torch_dtype": "bfloat16",
    "_name_or_path": "somewhere",
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [0],
}
HYBRID: dict[str, Any] = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.25},
}
HYBRID_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "tie_word_embeddings": False,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": SHAPE | {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2, untied": SHAPE | {"model_type": "qwen2", "tie_word_embeddings": False},
    "qwen2_moe": SHAPE
    | EXPERTS
    | {
        "model_type": "qwen2_moe",
        "mlp_only_layers": [],  # mlx-lm ignores them
        "norm_topk_prob": False,
        "shared_expert_intermediate_size": 128,
        "tie_word_embeddings": False,
    },
    "qwen3": SHAPE | {"model_type": "qwen3", "tie_word_embeddings": True, "head_dim": 64},
    "qwen3_moe": SHAPE | EXPERTS | {"model_type": "qwen3_moe", "tie_word_embeddings": False},
    "qwen3_vl": {
        "model_type": "qwen3_vl",
        "text_config": SHAPE | {"model_type": "qwen3_vl_text", "tie_word_embeddings": True},
        "vision_config": {"model_type": "qwen3_vl"},
    },
    "qwen3_vl_moe": {
        "model_type": "qwen3_vl_moe",
        "text_config": SHAPE
        | EXPERTS
        | {
            "model_type": "qwen3_vl_moe_text",
            "mlp_only_layers": [],
            "moe_intermediate_size": 192,  # no matrix is square: the shape tells the transpose
            "tie_word_embeddings": False,
        },
        "vision_config": {"model_type": "qwen3_vl_moe"},
    },
    "qwen3_next": SHAPE
    | HYBRID
    | HYBRID_EXPERTS
    | {
        "model_type": "qwen3_next",
        "linear_conv_kernel_dim": 4,
        "norm_topk_prob": True,
        "partial_rotary_factor": 0.25,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "qwen3_5": {
        "model_type": "qwen3_5",
        "text_config": SHAPE | HYBRID | {"tie_word_embeddings": True},
        "vision_config": {"model_type": "qwen3_5_vision"},
    },
    "qwen3_5_moe": {
        "model_type": "qwen3_5_moe",
        "text_config": SHAPE | HYBRID | HYBRID_EXPERTS,
        "vision_config": {"model_type": "qwen3_5_moe_vision"},
    },
}
FORMATS = {
    "4 bits": PackedFormat(group_size=64, bits=4),
    "3 bits": PackedFormat(group_size=32, bits=3),
    "8 bits": PackedFormat(group_size=128, bits=8),  # 192 and 64 columns do not divide into groups
    "mxfp4": PackedFormat(group_size=32, bits=4, mode="mxfp4"),
    "mxfp8": PackedFormat(group_size=32, bits=8, mode="mxfp8"),
    "nvfp4": PackedFormat(group_size=16, bits=4, mode="nvfp4"),
}
# Each family and each format. A nightly run compares the files of all pairs.
PAIRS = [(family, "4 bits") for family in FAMILIES]
PAIRS += [("qwen3_moe", form) for form in FORMATS if form != "4 bits"]
ALL_PAIRS = [
    pytest.param(*pair, marks=() if pair in PAIRS else pytest.mark.exhaustive)
    for pair in product(FAMILIES, FORMATS)
]


def published(folder: Path, family: str) -> Path:
    """Write random weights in Qwen's format: bfloat16, separate experts, tied heads stored too.

    Hybrid models have convolutions `C 1 K`. Nested models have fused experts, which are transposed
    in Qwen3-VL-MoE, and a vision tower.
    """
    mx.random.seed(3)
    config = FAMILIES[family]
    nested = "text_config" in config
    prefix = "model.language_model." if nested else "model."
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    # mlx-lm refuses a tied head in the files of nested models.
    head = {} if nested else {"lm_head.weight": mx.zeros((512, 128), mx.bfloat16)}
    tensors: dict[str, Any] = dict(head)
    for name, shape in expected_shapes(QwenConfig.from_hf(config)).items():
        spread = 0.05 if len(shape) > 1 else 0.3
        array = (mx.random.normal(shape) * spread + (len(shape) == 1)).astype(mx.bfloat16)
        if name.endswith("conv1d.weight"):
            array = array.swapaxes(1, 2)
        if name.endswith("A_log"):
            array = array.astype(mx.float32)
        if "switch_mlp" in name and nested:
            fused = name.replace("switch_mlp", "experts").removesuffix(".weight")
            tensors[prefix + fused] = array
        elif "switch_mlp" in name:
            for expert, one in enumerate(array):
                tensors[f"model.{name.replace('switch_mlp', f'experts.{expert}')}"] = one
        else:
            tensors[name if name.startswith("lm_head") else prefix + name] = array
    for name in [name for name in tensors if name.endswith("experts.gate_proj")]:
        gate, up = tensors.pop(name), tensors.pop(name.replace("gate_proj", "up_proj"))
        tensors[name.replace("gate_proj", "gate_up_proj")] = mx.concatenate([gate, up], axis=1)
    if family == "qwen3_vl_moe":
        tensors |= {
            name: array.swapaxes(1, 2)
            for name, array in tensors.items()
            if name.endswith(("experts.gate_up_proj", "experts.down_proj"))
        }
    if nested:
        tensors["model.visual.merger.norm.weight"] = mx.zeros((8,), mx.bfloat16)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, {"format": "pt"})
    for file in TOKENIZER.iterdir():
        shutil.copy(file, folder)
    return folder


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


def distance(actual: mx.array, expected: mx.array) -> float:
    """Return the largest difference, relative to the largest expected number."""
    return float(mx.abs(actual - expected).max()) / float(mx.abs(expected).max())


def prompt() -> mx.array:
    return mx.random.randint(0, 512, (2, 70), key=mx.random.key(5))


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


@pytest.mark.parametrize(
    ("family", "form"),
    [pair for pair in [*((family, None) for family in FAMILIES), *PAIRS] if pair[0] != "qwen2_moe"],
)
def test_from_mlx_lm_gives_the_same_logits(tmp_path: Path, family: str, form: str | None) -> None:
    loaded, _ = load_model(published(tmp_path / "source", family))
    loaded.set_dtype(mx.float32)
    if form is not None:
        packed = FORMATS[form]

        def fits(_path: str, module: nn.Module) -> bool:
            width = module.weight.shape[-1] if "weight" in module else 1
            return hasattr(module, "to_quantized") and width % packed.group_size == 0

        nn.quantize(loaded, packed.group_size, packed.bits, mode=packed.mode, class_predicate=fits)
    model = from_mlx_lm(loaded, ops=REFERENCE if form is None else MLX)
    assert isinstance(model, Qwen)
    weight = model.embed_tokens.weight
    assert isinstance(weight, QuantizedTensor) is (form is not None)
    if form is not None:
        assert model.config.quantization is not None
        assert model.config.quantization.format_of("embed_tokens") == FORMATS[form]
    assert distance(model(prompt()), loaded(prompt())) < LOGITS


def test_from_mlx_lm_refuses_qwen2_moe(tmp_path: Path) -> None:
    theirs, _ = load_model(published(tmp_path / "source", "qwen2_moe"))
    with pytest.raises(CheckpointError, match=r"no context length.*tinyllm_qwen\.load"):
        from_mlx_lm(theirs)


def test_from_mlx_lm_shares_the_arrays(tmp_path: Path) -> None:
    theirs, _ = load_model(published(tmp_path / "source", "qwen3"))
    mx.eval(theirs.parameters())
    before = mx.get_active_memory()
    ours = from_mlx_lm(theirs)
    mx.eval([w.arrays if isinstance(w, QuantizedTensor) else w for w in ours.weights()])
    assert ours.norm.weight is theirs.model.norm.weight
    assert mx.get_active_memory() - before < 10_000  # tables of frequencies


def test_from_mlx_lm_refuses_adapters(tmp_path: Path) -> None:
    theirs, _ = load_model(published(tmp_path / "source", "qwen3"))
    linear_to_lora_layers(theirs, 1, {"rank": 4, "scale": 1.0, "dropout": 0.0})
    with pytest.raises(CheckpointError, match=r"_proj: expected .*LoRALinear.*mlx_lm\.fuse first"):
        from_mlx_lm(theirs)


def test_from_mlx_lm_refuses_global_scales(tmp_path: Path) -> None:
    theirs, _ = load_model(published(tmp_path / "source", "qwen3_moe"))

    def experts(_path: str, module: nn.Module) -> bool | dict[str, Any]:
        settings = {"group_size": 16, "bits": 4, "mode": "nvfp4", "global_scale": True}
        return settings if isinstance(module, SwitchLinear) else False

    nn.quantize(theirs, class_predicate=experts)
    with pytest.raises(CheckpointError, match=r"switch_mlp.*global_scale is not implemented yet"):
        from_mlx_lm(theirs)


def test_from_mlx_lm_names_the_layer_of_arrays_that_do_not_fit(tmp_path: Path) -> None:
    theirs, _ = load_model(published(tmp_path / "source", "qwen3"))
    nn.quantize(theirs, group_size=32, bits=4)
    theirs.model.layers[1].mlp.up_proj.pop("biases")
    with pytest.raises(
        CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj: biases: mode 'affine' has biases"
    ):
        from_mlx_lm(theirs)


def test_from_mlx_lm_refuses_several_dtypes(tmp_path: Path) -> None:
    theirs, _ = load_model(published(tmp_path / "source", "qwen3"))
    theirs.model.norm.set_dtype(mx.float32)
    with pytest.raises(CheckpointError, match=r"one dtype, got mlx\.core\.bfloat16, mlx\.core\."):
        from_mlx_lm(theirs)


def test_from_mlx_lm_refuses_other_model_types(tmp_path: Path) -> None:
    theirs, _ = load_model(published(tmp_path / "source", "qwen3"))
    theirs.args.model_type = "llama"
    with pytest.raises(CheckpointError, match=r"model\.args: model_type: expected one of qwen2.*"):
        from_mlx_lm(theirs)
    with pytest.raises(CheckpointError, match=r"expected a model from mlx_lm\.load"):
        from_mlx_lm(nn.Linear(2, 2))


def test_from_mlx_lm_refuses_unexpected_and_missing_weights(tmp_path: Path) -> None:
    theirs, _ = load_model(published(tmp_path / "source", "qwen3"))
    theirs.model.layers[0].self_attn.o_proj = nn.Linear(256, 128, bias=True)
    with pytest.raises(CheckpointError, match=r"layers\.0\.self_attn\.o_proj\.bias is unexpected"):
        from_mlx_lm(theirs)
    del theirs.model.layers[0].self_attn.o_proj
    with pytest.raises(CheckpointError, match=r"layers\.0\.self_attn\.o_proj\.weight is missing"):
        from_mlx_lm(theirs)
