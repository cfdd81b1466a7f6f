"""The names of modules without the prefixes that distinguish the formats of checkpoints."""

PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.")
"""Prefixes of the language model. In order: Qwen3.5 by Hugging Face, Qwen3.5 by MLX, the head of
Qwen3.5 by MLX, all other models."""

VISION = ("model.visual.", "visual.", "vision_tower.", "model.vision_tower.")
"""Prefixes of the vision tower, in the files of Hugging Face and of MLX."""


def module_path(name: str) -> str:
    """Return the name of a module or a tensor in the language model, such as "layers.0.mlp"."""
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name
