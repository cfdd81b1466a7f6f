# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy>=2", "safetensors>=0.5", "torch==2.13.0", "transformers>=5.23,<6"]
# ///
"""Make packages/tinyllm-qwen/tests/goldens/models: random models, run by transformers.

    uv run tools/goldens/qwen.py

Each family has a config.json, a model.safetensors in float32 and an expected.safetensors with
tokens (B L), logits (B L V) and the greedy continuation of the first row (64 tokens).
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import (
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

GOLDENS = Path(__file__).resolve().parents[2] / "packages/tinyllm-qwen/tests/goldens/models"
SHAPE: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
SLIDING: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
EXPERTS: dict[str, Any] = SHAPE | {
    "head_dim": 16,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "tie_word_embeddings": False,
}
FAMILIES = {
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SHAPE, tie_word_embeddings=True)),
    "qwen2-untied": (Qwen2ForCausalLM, Qwen2Config(**SHAPE, tie_word_embeddings=False)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SHAPE, head_dim=32, tie_word_embeddings=True)),
    "qwen3-bias": (
        Qwen3ForCausalLM,
        Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=False, attention_bias=True),
    ),
    "qwen2-sliding": (Qwen2ForCausalLM, Qwen2Config(**SHAPE, **SLIDING, tie_word_embeddings=True)),
    "qwen3-yarn": (
        Qwen3ForCausalLM,
        Qwen3Config(**(SHAPE | {"rope_parameters": YARN}), head_dim=32, tie_word_embeddings=True),
    ),
    "qwen3-moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig(**EXPERTS, norm_topk_prob=True)),
    "qwen3-moe-mixed": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig(
            **(EXPERTS | {"num_hidden_layers": 3}),
            norm_topk_prob=False,
            decoder_sparse_step=1,
            mlp_only_layers=[1],
            attention_bias=True,
        ),
    ),
}


def make(name: str) -> None:
    """Write one family's folder."""
    torch.manual_seed(0)
    kind, config = FAMILIES[name]
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Far from the small initial values, so that a swapped bias or norm shows.
            parameter.add_(torch.randn_like(parameter) * 0.2)
        tokens = torch.randint(0, config.vocab_size, (2, 23))
        logits = model(tokens).logits
        text = tokens[:1]
        for _ in range(64):
            text = torch.cat([text, model(text).logits[:, -1:].argmax(-1)], dim=1)
    folder = GOLDENS / name
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    expected = {"tokens": tokens.int(), "logits": logits, "greedy": text[0, 23:].int()}
    save_file(
        {key: value.contiguous() for key, value in expected.items()},
        folder / "expected.safetensors",
    )


if __name__ == "__main__":
    for family in FAMILIES:
        make(family)
