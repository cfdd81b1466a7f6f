"""The supported types of models, as `model_type` of a config names them."""

from typing import Literal

from tinyllm_qwen.config.fields import Fields

ModelType = Literal[
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "qwen3_vl",
    "qwen3_vl_moe",
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_moe",
]

SUPPORTED: dict[ModelType, str] = {
    "qwen2": "Qwen2 and Qwen2.5",
    "qwen2_moe": "Qwen1.5-MoE and Qwen2-MoE",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3-MoE",
    "qwen3_vl": "Qwen3-VL",
    "qwen3_vl_moe": "Qwen3-VL-MoE",
    "qwen3_next": "Qwen3-Next",
    "qwen3_5": "Qwen3.5, Qwen3.6 and Qwen3.8",
    "qwen3_5_moe": "Qwen3.5-MoE, Qwen3.6-MoE and Qwen3.8-2.4T-A95B",
}
"""The model types with the names of their models."""

NESTED: tuple[ModelType, ...] = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
"""Models with a vision tower. Their configs nest the language model in `text_config`."""

MOE: tuple[ModelType, ...] = ("qwen2_moe", "qwen3_moe", "qwen3_vl_moe")
"""Models with experts in some layers. In `HYBRID_MOE`, all layers have experts."""

QWEN2: tuple[ModelType, ...] = ("qwen2", "qwen2_moe")
HYBRID: tuple[ModelType, ...] = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
HYBRID_MOE: tuple[ModelType, ...] = ("qwen3_next", "qwen3_5_moe")

_TEXT = "_text"  # ends the type of a language model inside `text_config`, or saved on its own


def read_model_type(fields: Fields) -> ModelType:
    """Read `model_type`, with or without the suffix of a language model.

    Raises:
        CheckpointError: if the type is missing or not supported.
    """
    text = _model_type_text(fields)
    for model_type in SUPPORTED:
        if model_type == text:
            return model_type
    known = ", ".join(f"{key} ({name})" for key, name in SUPPORTED.items())
    raise fields.error("model_type", f"one of {known}")


def may_nest(fields: Fields) -> bool:
    """Return True if a config of this type may nest the language model in `text_config`."""
    return _model_type_text(fields) in NESTED


def _model_type_text(fields: Fields) -> str:
    """Return `model_type` without the suffix of a language model."""
    return (fields.text("model_type") or "").removesuffix(_TEXT)
