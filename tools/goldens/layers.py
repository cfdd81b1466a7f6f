# /// script
# requires-python = ">=3.11"
# dependencies = ["safetensors>=0.7", "torch==2.13.0", "transformers==5.23.0"]
# ///
"""Write outputs of transformers' Qwen2 and Qwen3 layers, for the tests of tinyllm-layers.

Run by hand, when a case is added: `uv run --script tools/goldens/layers.py`. Each case is one
decoder layer in float32 with small random weights, biases and norms included:

    qwen2: biases on q, k, v; no q/k norm; heads times head dim is the model width
    qwen3: no biases; q/k norm; heads times head dim is not the model width
    qwen3_biased: as qwen3, with biases on all four projections

The file holds `CASE.WEIGHT` under the weight's Hugging Face name, the input `CASE.x` (B L E), the
output of the attention alone (`CASE.attention`), and that of the whole layer (`CASE.layer`).
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import Qwen2Config, Qwen3Config
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "packages/tinyllm-layers/tests/goldens/layers.safetensors"
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 16,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "attn_implementation": "eager",
}
ROWS, LENGTH = 2, 13


def randomize(layer: torch.nn.Module, seed: int) -> None:
    """Fill every parameter with random numbers, also those that start as ones or zeros."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in layer.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        norm = parameter.ndim == 1 and bool((parameter == 1).all())
        parameter.data = 1 + 0.3 * noise if norm else noise / parameter.shape[-1] ** 0.5


def outputs(layer: torch.nn.Module, rotary: torch.nn.Module, seed: int) -> dict[str, torch.Tensor]:
    """Run a decoder layer, and its attention alone, over the same causal input."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, LENGTH, SIZES["hidden_size"], generator=generator)
    angles = rotary(x, torch.arange(LENGTH)[None])
    mask = torch.full((LENGTH, LENGTH), -torch.inf).triu(1)[None, None]
    attention, _ = layer.self_attn(x, position_embeddings=angles, attention_mask=mask)
    whole = layer(x, position_embeddings=angles, attention_mask=mask)
    return {"x": x, "attention": attention, "layer": whole}


@torch.no_grad()  # type: ignore[untyped-decorator]
def main() -> None:
    """Write the golden file."""
    argparse.ArgumentParser(description=f"Run layers of transformers; write {OUT}.").parse_args()
    qwen2 = Qwen2Config(**SIZES)
    qwen3 = Qwen3Config(**SIZES, head_dim=12)
    biased = Qwen3Config(**SIZES, head_dim=12, attention_bias=True)
    cases = {
        "qwen2": (qwen2, modeling_qwen2.Qwen2DecoderLayer, modeling_qwen2.Qwen2RotaryEmbedding),
        "qwen3": (qwen3, modeling_qwen3.Qwen3DecoderLayer, modeling_qwen3.Qwen3RotaryEmbedding),
        "qwen3_biased": (
            biased,
            modeling_qwen3.Qwen3DecoderLayer,
            modeling_qwen3.Qwen3RotaryEmbedding,
        ),
    }
    tensors: dict[str, torch.Tensor] = {}
    for seed, (name, (config, layer_class, rotary_class)) in enumerate(cases.items()):
        layer = layer_class(config, 0).float().eval()
        randomize(layer, seed)
        parts = dict(layer.named_parameters()) | outputs(layer, rotary_class(config), seed + 100)
        tensors |= {f"{name}.{key}": part.contiguous() for key, part in parts.items()}
    OUT.parent.mkdir(exist_ok=True)
    save_file(tensors, OUT)


if __name__ == "__main__":
    main()
