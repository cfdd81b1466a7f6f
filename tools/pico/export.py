"""Export of trained weights as an MLX checkpoint in 4 bits, with its card.

`read` loads the checkpoint again, so that recall is measured on the exported weights.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import torch
from quantization import BITS, GROUP_SIZE, pack, unpack
from tokens import ChatTokens
from torch import Tensor
from transformers import Qwen3ForCausalLM

LIMIT = 4_000_000  # bytes, since the checkpoint lies in the repository and in the wheel
CARD = Path(__file__).with_name("card.md")


def write(model: Qwen3ForCausalLM, tokens: ChatTokens, out: Path) -> int:
    """Write the checkpoint to `out` and return its size in bytes.

    Raises:
        ValueError: it is larger than `LIMIT`.
    """
    out.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, mx.array] = {}
    for name, parameter in model.model.named_parameters():
        key = "model." + name.removesuffix(".weight")
        if parameter.ndim == 2:
            codes, scales, biases = pack(parameter)
            arrays |= {key + ".weight": codes, key + ".scales": scales, key + ".biases": biases}
        else:
            arrays[key + ".weight"] = mx.array(parameter.detach().numpy()).astype(mx.float16)
    mx.save_safetensors(str(out / "model.safetensors"), arrays, metadata={"format": "mlx"})
    (out / "config.json").write_text(json.dumps(config(model), indent=2) + "\n")
    generation = {
        "do_sample": False,
        "eos_token_id": [tokens.end, tokens.pad],
        "pad_token_id": tokens.pad,
    }
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokens.folder / name, out / name)
    size = sum(path.stat().st_size for path in out.iterdir() if path.is_file())
    if size > LIMIT:
        raise ValueError(f"{out} holds {size:,} bytes, expected at most {LIMIT:,}")
    return size


def config(model: Qwen3ForCausalLM) -> dict[str, Any]:
    """Return the fields of Qwen3's `config.json`, and `quantization` as mlx-lm writes it."""
    shape = model.config
    quantization = {"group_size": GROUP_SIZE, "bits": BITS, "mode": "affine"}
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "max_window_layers": shape.num_hidden_layers,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": 1000000.0,
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_cache": True,
        "initializer_range": shape.initializer_range,
        "bos_token_id": None,
        "eos_token_id": shape.eos_token_id,
        "pad_token_id": shape.pad_token_id,
        "torch_dtype": "float16",
        "quantization": quantization,
        "quantization_config": quantization,
    }


def read(model: Qwen3ForCausalLM, out: Path) -> None:
    """Load the weights of the checkpoint in `out` into `model`, dequantized to float32."""
    arrays = mx.load(str(out / "model.safetensors"))
    assert isinstance(arrays, dict)
    with torch.no_grad():
        for name, parameter in model.model.named_parameters():
            key = "model." + name.removesuffix(".weight")
            parameter.copy_(_value(arrays, key))


def write_card(out: Path, figures: dict[str, str]) -> None:
    """Write the model card, `README.md`, to `out`: `card.md` with `figures` filled in.

    Raises:
        ValueError: `card.md` asks for a figure that is not given.
    """
    text = CARD.read_text("utf-8")
    for name, value in figures.items():
        text = text.replace("{{" + name + "}}", value)
    if "{{" in text:
        asked = text[text.index("{{") :][:40]
        raise ValueError(f"{CARD.name} asks for a figure that was not given: {asked!r}")
    (out / "README.md").write_text(text, "utf-8")


def _value(arrays: dict[str, mx.array], key: str) -> Tensor:
    """Return the parameter `key` in float32, from codes or from float16."""
    if key + ".scales" in arrays:
        return unpack(arrays[key + ".weight"], arrays[key + ".scales"], arrays[key + ".biases"])
    return torch.from_numpy(np.array(arrays[key + ".weight"].astype(mx.float32)))
