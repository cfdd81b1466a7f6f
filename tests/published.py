"""Small checkpoints of every family as they are published, and a measure of two models' logits."""

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
from tinyllm_qwen import QwenConfig
from tinyllm_qwen.checkpoint.schema import expected_shapes
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
# Each family and each format.
PAIRS = [(family, "4 bits") for family in FAMILIES]
PAIRS += [("qwen3_moe", form) for form in FORMATS if form != "4 bits"]


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


def distance(actual: mx.array, expected: mx.array) -> float:
    """Return the largest difference, relative to the largest expected number."""
    return float(mx.abs(actual - expected).max()) / float(mx.abs(expected).max())


def prompt() -> mx.array:
    return mx.random.randint(0, 512, (2, 70), key=mx.random.key(5))
