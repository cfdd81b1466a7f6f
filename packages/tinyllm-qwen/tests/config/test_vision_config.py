"""The config.json of Qwen3-VL: that of Qwen3, nested beside the settings of a vision tower."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.errors import CheckpointError


@pytest.fixture
def plain(random_checkpoint: Callable[..., Any]) -> dict[str, object]:
    """Return the fields of a Qwen3-MoE."""
    text = (random_checkpoint("qwen3_moe").folder / "config.json").read_text()
    fields: dict[str, object] = json.loads(text)
    return fields


def nested(plain: dict[str, object], **fields: object) -> dict[str, object]:
    """Return a Qwen3-VL-MoE as published, whose rotary sections have no effect on text.

    `fields` replace some of the language model.
    """
    text = {name: value for name, value in plain.items() if name != "tie_word_embeddings"}
    sections = {"mrope_interleaved": True, "mrope_section": [6, 5, 5], "rope_type": "default"}
    own = {"model_type": "qwen3_vl_moe_text", "rope_scaling": sections}
    return {
        "model_type": "qwen3_vl_moe",
        "text_config": text | own | fields,
        "tie_word_embeddings": False,
        "vision_config": {"depth": 27},
    }


def test_the_language_model_is_that_of_qwen3(plain: dict[str, object]) -> None:
    config = QwenConfig.from_hf(nested(plain))
    expected = QwenConfig.from_hf(plain)
    assert config == replace(expected, model_type="qwen3_vl_moe", has_vision_tower=True)
    assert config.notices
    assert config.mlx_prefix == "language_model."


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("norm_topk_prob", False, "norm_topk_prob: expected true or nothing"),
        ("use_sliding_window", True, "use_sliding_window: expected false"),
    ],
)
def test_fields_that_transformers_does_not_read_are_refused(
    plain: dict[str, object], field: str, value: bool, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        QwenConfig.from_hf(nested(plain, **{field: value}))


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_is_that_of_the_whole_model(plain: dict[str, object], tied: bool) -> None:
    # transformers 5 writes the default of the language model, whatever the model has.
    saved = nested(plain, tie_word_embeddings=not tied)
    config = QwenConfig.from_hf(saved | {"tie_word_embeddings": tied})
    assert config.tie_word_embeddings is tied
    absent = QwenConfig.from_hf(saved | {"tie_word_embeddings": None})
    assert absent.tie_word_embeddings is not tied
