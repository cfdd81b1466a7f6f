"""Export of trained weights as an MLX checkpoint in 4 bits, with its card.

`read` loads the checkpoint again, so that recall is measured on the exported weights.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import network
import numpy as np
import torch
from quantization import BITS, GROUP_SIZE, pack, unpack
from tokens import ChatTokens
from torch import Tensor
from transformers import Qwen3_5ForCausalLM

LIMIT = 4_000_000  # bytes, since the checkpoint lies in the repository and in the wheel
CARD = Path(__file__).with_name("card.md")


def write(model: network.Model, tokens: ChatTokens, out: Path) -> int:
    """Write the checkpoint to `out` and return its size in bytes.

    Raises:
        ValueError: it is larger than `LIMIT`.
    """
    out.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, mx.array] = {}
    for name, parameter in network.named(model).items():
        key = _key(model, name)
        if parameter.ndim == 2:
            codes, scales, biases = pack(parameter)
            part = key.removesuffix("weight")
            arrays |= {key: codes, part + "scales": scales, part + "biases": biases}
        else:
            dtype = mx.float32 if name.endswith("A_log") else mx.float16
            arrays[key] = mx.array(parameter.detach().numpy()).astype(dtype)
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


def config(model: network.Model) -> dict[str, Any]:
    """Return the fields of the family's `config.json`, and `quantization` as mlx-lm writes it."""
    shape = model.config
    quantization = {"group_size": GROUP_SIZE, "bits": BITS, "mode": "affine"}
    hybrid = isinstance(model, Qwen3_5ForCausalLM)
    text = {
        "model_type": "qwen3_5_text" if hybrid else "qwen3",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "rms_norm_eps": shape.rms_norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "use_cache": True,
        "initializer_range": shape.initializer_range,
        "bos_token_id": None,
        "eos_token_id": shape.eos_token_id,
        "pad_token_id": shape.pad_token_id,
        "torch_dtype": "float16",
    }
    packed = {"quantization": quantization, "quantization_config": quantization}
    if isinstance(model, Qwen3_5ForCausalLM):
        return {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "text_config": text
            | {
                "attn_output_gate": True,
                "layer_types": shape.layer_types,
                "linear_conv_kernel_dim": shape.linear_conv_kernel_dim,
                "linear_key_head_dim": shape.linear_key_head_dim,
                "linear_num_key_heads": shape.linear_num_key_heads,
                "linear_num_value_heads": shape.linear_num_value_heads,
                "linear_value_head_dim": shape.linear_value_head_dim,
                "mamba_ssm_dtype": "float32",
                "mtp_num_hidden_layers": 1,
                "rope_parameters": shape.rope_parameters,
            },
            "tie_word_embeddings": True,
        } | packed
    return {
        "architectures": ["Qwen3ForCausalLM"],
        **text,
        "max_window_layers": shape.num_hidden_layers,
        "rope_theta": 1000000.0,
        "rope_scaling": None,
        "use_sliding_window": False,
        "sliding_window": None,
    } | packed


def _key(model: network.Model, name: str) -> str:
    """Return the name in the file of the parameter `name`.

    The shape of the convolutions tells a reader that norms are zero-centred, as in PyTorch.
    """
    prefix = "" if name.startswith(network.DRAFT_HEAD) else "model."
    return ("language_model." if isinstance(model, Qwen3_5ForCausalLM) else "") + prefix + name


def read(model: network.Model, out: Path) -> None:
    """Load the weights of the checkpoint in `out` into `model`, dequantized to float32."""
    arrays = mx.load(str(out / "model.safetensors"))
    assert isinstance(arrays, dict)
    with torch.no_grad():
        for name, parameter in network.named(model).items():
            parameter.copy_(_value(arrays, _key(model, name)))


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
    part = key.removesuffix("weight")
    if part + "scales" in arrays:
        return unpack(arrays[key], arrays[part + "scales"], arrays[part + "biases"])
    return torch.from_numpy(np.array(arrays[key].astype(mx.float32)))
