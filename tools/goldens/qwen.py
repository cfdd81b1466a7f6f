# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy>=2", "safetensors>=0.5", "torch==2.13.0", "transformers>=5.23,<6"]
# ///
"""Make packages/tinyllm-qwen/tests/goldens/models: random models, run by transformers.

    uv run tools/goldens/qwen.py [FAMILY ...]

Each family has a config.json, a model.safetensors in float32 and an expected.safetensors with
tokens (B L), logits (B L V) and the greedy continuation of the first row (64 tokens).
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import (
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3_5Config,
    Qwen3_5ForCausalLM,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
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
MROPE: dict[str, Any] = {
    "rope_type": "default",
    "rope_theta": 5e6,
    "mrope_section": [4, 2, 2],
    "mrope_interleaved": True,
}
EXPERTS: dict[str, Any] = SHAPE | {
    "head_dim": 16,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "tie_word_embeddings": False,
}
# Qwen3.5 in small: three recurrent layers and one attention layer, which rotates 8 of 32 features.
HYBRID: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "max_position_embeddings": 512,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}
MORE_VALUES = {"linear_num_value_heads": 4}  # as in the sizes from 4B on
VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_heads": 2,
    "patch_size": 2,
    "out_hidden_size": 48,
    "num_position_embeddings": 4,
}
HYBRID_EXPERTS: dict[str, Any] = {
    "num_attention_heads": 8,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24,
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
    "qwen2-moe": (
        Qwen2MoeForCausalLM,
        Qwen2MoeConfig(
            **(SHAPE | {"num_hidden_layers": 3}),
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=40,
            mlp_only_layers=[1],
            tie_word_embeddings=False,
        ),
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
    "qwen3-vl": (  # with a vision tower, as published
        Qwen3VLForConditionalGeneration,
        Qwen3VLConfig(
            text_config=SHAPE | {"head_dim": 16, "rope_parameters": MROPE},
            vision_config=VISION | {"deepstack_visual_indexes": [0]},
            tie_word_embeddings=True,
        ),
    ),
    "qwen3-vl-moe": (
        Qwen3VLMoeForConditionalGeneration,
        Qwen3VLMoeConfig(
            text_config=EXPERTS | {"rope_parameters": MROPE},
            vision_config=VISION | {"deepstack_visual_indexes": [0]},
            tie_word_embeddings=False,
        ),
    ),
    "qwen3-next": (
        Qwen3NextForCausalLM,
        Qwen3NextConfig(
            **HYBRID
            | MORE_VALUES
            | HYBRID_EXPERTS
            | {
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1e7,
                    "partial_rotary_factor": 0.25,
                }
            },
            tie_word_embeddings=False,
        ),
    ),
    "qwen3.5-0.8b": (  # with a vision tower and nested settings, as published
        Qwen3_5ForConditionalGeneration,
        Qwen3_5Config(
            text_config=HYBRID | {"tie_word_embeddings": True},
            vision_config=VISION,
            tie_word_embeddings=True,
        ),
    ),
    "qwen3.5-2b": (
        Qwen3_5ForCausalLM,
        Qwen3_5TextConfig(**(HYBRID | {"hidden_size": 64}), tie_word_embeddings=True),
    ),
    "qwen3.5-4b": (
        Qwen3_5ForCausalLM,
        Qwen3_5TextConfig(**(HYBRID | MORE_VALUES), tie_word_embeddings=True),
    ),
    "qwen3.5-9b": (
        Qwen3_5ForCausalLM,
        Qwen3_5TextConfig(**(HYBRID | MORE_VALUES), tie_word_embeddings=False),
    ),
    "qwen3.5-35b-a3b": (
        Qwen3_5MoeForCausalLM,
        Qwen3_5MoeTextConfig(
            **{key: value for key, value in HYBRID.items() if key != "intermediate_size"}
            | MORE_VALUES
            | HYBRID_EXPERTS,
            tie_word_embeddings=False,
        ),
    ),
}
# With seed 0, the second and third expert of one token have routing weights that differ by 8e-7, so
# that rounding decides between them.
SEEDS = {"qwen3.5-35b-a3b": 1}


def make(name: str) -> None:
    """Write one family's folder."""
    torch.manual_seed(SEEDS.get(name, 0))
    kind, config = FAMILIES[name]
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Far from the small initial values, so that a swapped bias or norm shows.
            parameter.add_(torch.randn_like(parameter) * 0.2)
        tokens = torch.randint(0, SHAPE["vocab_size"], (2, 23))
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


def main() -> None:
    """Write the folders of the families that are named, or of all families."""
    parser = argparse.ArgumentParser(description="Make random models, run by transformers.")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(FAMILIES)}")
    families = parser.parse_args().families
    # Before the first file is written. `choices` would refuse an empty list.
    if unknown := [name for name in families if name not in FAMILIES]:
        parser.error(f"FAMILY: expected some of {', '.join(FAMILIES)}, got {', '.join(unknown)}")
    for name in families or FAMILIES:
        make(name)


if __name__ == "__main__":
    main()
