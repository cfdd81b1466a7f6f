"""Checkpoints of hybrid models with random weights, in the files of Hugging Face or of MLX."""

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import mlx.core as mx

from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.checkpoint.schema import draft_head_shapes, expected_shapes, is_draft_head
from tinyllm_qwen.checkpoint.stored_tensor import is_centred_norm
from tinyllm_qwen.config.quantization import PackedFormat
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.convert.config import ConversionConfig
from tinyllm_qwen.convert.convert import convert

Files = Literal["hf", "mlx"]
"""The naming of tensors: Hugging Face, Qwen3.5 with a vision tower, or MLX."""

Shape = Mapping[str, int | bool | str]
"""Fields of the config that differ between sizes. A shape of Qwen3-Next has a `model_type`."""

_TEMPLATE = Path(__file__).with_name("qwen35.jinja")
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
_NEXT = "qwen3_next"
_PICO_VOCABULARY = 2048
_PICO_END = (2043, 2041)


def _shape(
    hidden: int, layers: int, mlp: int, heads: int, kv_heads: int, value_heads: int, *, tied: bool
) -> dict[str, int | bool]:
    """Return the fields of a published size, with its heads of 256 and 128 features."""
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": mlp,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "vocab_size": 248_320,
        "tie_word_embeddings": tied,
    }


_TINY = _shape(128, 8, 192, 4, 2, 4, tied=True) | {
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "vocab_size": _PICO_VOCABULARY,
}
_EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "tie_word_embeddings": False,
}
SHAPES: dict[str, Shape] = {
    "tiny": _TINY,
    "tiny-moe": _TINY | _EXPERTS,
    "tiny-next": _TINY | _EXPERTS | {"model_type": _NEXT},
    "0.8b": _shape(1024, 24, 3584, 8, 2, 16, tied=True),
    "2b": _shape(2048, 24, 6144, 8, 2, 16, tied=True),
    "4b": _shape(2560, 32, 9216, 16, 4, 32, tied=True),
    "9b": _shape(4096, 32, 12288, 16, 4, 32, tied=False),
}
"""The sizes of Qwen3.5, and sizes of a few megabytes for tests, one of them of Qwen3-Next."""


def hybrid_checkpoint(
    folder: Path,
    shape: Shape = SHAPES["tiny"],
    *,
    files: Files = "hf",
    packed: PackedFormat | None = None,
    dtype: mx.Dtype = mx.float32,
    seed: int = 0,
) -> Path:
    """Write a checkpoint with random weights, pico's tokenizer and a chat template.

    The weights of both kinds of files are the same for the same seed. Files of Hugging Face have a
    draft head, and those of Qwen3.5 a vision tower of one tensor, as the published files have.

    Args:
        folder: the folder to make.
        shape: fields of the config, such as one of `SHAPES`. With `num_experts`, the model is a
            mixture of experts.
        files: the kind of files.
        packed: the format of the matrices; None for no quantization. Only MLX files can be packed.
        dtype: the dtype of the floating tensors.
        seed: the seed of the random numbers, from 0 to 2^64 - 1.

    Returns:
        The folder.

    Raises:
        ValueError: if Hugging Face's files shall be packed, or for another seed.
        ConversionError: if the folder exists.
    """
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed: expected 0 to 2^64 - 1, got {seed}")
    if files == "hf":
        if packed is not None:
            raise ValueError("packed: expected None, since only files of MLX are quantized")
        return _write(folder, shape, dtype, seed)
    with TemporaryDirectory(dir=folder.absolute().parent) as temporary:
        source = _write(Path(temporary) / "hf", shape, dtype, seed)
        return convert(source, folder, ConversionConfig(packed=packed)).folder


def hybrid_config(shape: Shape, dtype: mx.Dtype = mx.float32) -> dict[str, object]:
    """Return the config.json of a checkpoint: of Qwen3.5, with a vision tower."""
    if shape.get("model_type") == _NEXT:
        return _next_config(shape, dtype)
    moe = "num_experts" in shape
    name = str(dtype).removeprefix("mlx.core.")
    fields = {
        key: value for key, value in shape.items() if not (moe and key == "intermediate_size")
    }
    interval = 4
    text: dict[str, object] = {
        "model_type": "qwen3_5_moe_text" if moe else "qwen3_5_text",
        **fields,
        "dtype": name,
        "attention_bias": False,
        "attn_output_gate": True,
        "eos_token_id": _PICO_END[1],
        "full_attention_interval": interval,
        "hidden_act": "silu",
        "layer_types": [
            "linear_attention" if (layer + 1) % interval else "full_attention"
            for layer in range(int(shape["num_hidden_layers"]))
        ],
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 32_768,
        "mtp_num_hidden_layers": 1,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10_000_000,
            "rope_type": "default",
        },
    }
    return {
        "architectures": [f"Qwen3_5{'Moe' if moe else ''}ForConditionalGeneration"],
        "model_type": "qwen3_5_moe" if moe else "qwen3_5",
        "text_config": text,
        "vision_config": {"model_type": "qwen3_5_vision", "depth": 1, "hidden_size": 8},
        "tie_word_embeddings": bool(shape["tie_word_embeddings"]),
    }


def _next_config(shape: Shape, dtype: mx.Dtype) -> dict[str, object]:
    """Return the config.json of Qwen3-Next, as published: in the style of transformers 4."""
    return {
        "architectures": ["Qwen3NextForCausalLM"],
        **shape,
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "eos_token_id": _PICO_END[1],
        "full_attention_interval": 4,
        "hidden_act": "silu",
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 32_768,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 10_000_000,
        "torch_dtype": str(dtype).removeprefix("mlx.core."),
        "use_sliding_window": False,
    }


def _write(folder: Path, shape: Shape, dtype: mx.Dtype, seed: int) -> Path:
    """Write the files of Hugging Face."""
    folder.mkdir(parents=True)
    document = hybrid_config(shape, dtype)
    (folder / "config.json").write_text(json.dumps(document, indent=2) + "\n")
    config, nested = QwenConfig.from_hf(document), "text_config" in document
    shapes = expected_shapes(config) | draft_head_shapes(config)
    keys = mx.random.split(mx.random.key(seed), len(shapes))
    tensors: dict[str, mx.array] = {}
    for key, (name, size) in zip(keys, shapes.items(), strict=True):
        number_type = mx.float32 if name.endswith(("A_log", "linear_attn.norm.weight")) else dtype
        tensor = _random(name, size, key).astype(number_type)
        tensors |= _as_stored(name, tensor, "model.language_model." if nested else "model.")
        mx.eval(tensors)
    if nested:
        tensors["model.visual.patch_embed.proj.weight"] = mx.zeros((8, 3, 2, 4, 4), dtype)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, {"format": "pt"})
    pico = resolve("pico")
    for file in _TOKENIZER:
        shutil.copy(pico / file, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    shutil.copy(_TEMPLATE, folder / "chat_template.jinja")
    return folder


def _random(name: str, shape: tuple[int, ...], key: mx.array) -> mx.array:
    """Draw a tensor in the format of MLX, but with zero-centred norms."""
    normal = mx.random.normal(shape, key=key)
    if name.endswith("A_log"):  # decay rates of 1 to 16, as in the initialization of the models
        return mx.log(mx.random.uniform(1.0, 16.0, shape, key=key))
    if name.endswith("dt_bias"):  # with the decay rates: states that last 1 to 1,000 tokens
        return normal * 1.5 - 3.0
    if len(shape) == 1:
        return normal * 0.2 + (0.0 if is_centred_norm(name) else 1.0)
    if name.endswith("conv1d.weight"):
        return normal * 0.5
    return normal / math.sqrt(shape[-1])


def _as_stored(name: str, tensor: mx.array, prefix: str) -> dict[str, mx.array]:
    """Return the tensors of Hugging Face for a tensor of MLX, by name."""
    if is_draft_head(name) or name.startswith("lm_head."):
        prefix = ""
    if name.endswith("conv1d.weight"):
        tensor = tensor.swapaxes(1, 2)
    if ".switch_mlp." in name:
        module, _, part = name.partition(".switch_mlp.")
        part = part.removesuffix("_proj.weight")
        return {
            f"{prefix}{module}.experts.{expert}.{part}_proj.weight": one
            for expert, one in enumerate(tensor)
        }
    return {prefix + name: mx.contiguous(tensor)}
