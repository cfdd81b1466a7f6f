"""Named shapes: their parameters and sizes are those of the published models."""

import math

import pytest
from tinyllm_bench.shapes import SHAPES, published_config
from tinyllm_cli.messages import UsageError
from tinyllm_qwen import QwenConfig
from tinyllm_qwen.checkpoint.schema import expected_shapes


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen3.5-0.8b", 752_393_024),
        ("qwen3.5-4b", 4_205_751_296),
        ("pico", 5_246_976),
    ],
)
def test_parameters_are_those_that_the_model_pages_state(shape: str, parameters: int) -> None:
    config = QwenConfig.from_hf(published_config(shape))
    assert sum(map(math.prod, expected_shapes(config).values())) == parameters


@pytest.mark.parametrize(
    ("shape", "numbers"),
    [
        ("qwen3-0.6b", (28, 16, 8, 128, 40960)),
        ("qwen3-4b", (36, 32, 8, 128, 40960)),
        ("qwen3-30b-a3b", (48, 32, 4, 128, 40960)),
        ("qwen2.5-0.5b", (24, 14, 2, 64, 32768)),
        ("qwen3.5-0.8b", (24, 8, 2, 256, 262144)),
        ("qwen3.5-4b", (32, 16, 4, 256, 262144)),
        ("qwen3.5-35b-a3b", (40, 16, 2, 256, 262144)),
        ("pico", (6, 4, 2, 64, 2048)),
    ],
)
def test_layers_heads_and_context_are_those_published(shape: str, numbers: tuple[int, ...]) -> None:
    config = QwenConfig.from_hf(published_config(shape))
    heads = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    assert (config.num_hidden_layers, *heads, config.max_position_embeddings) == numbers
    assert config.tie_word_embeddings == (not shape.endswith("-a3b"))
    assert config.quantization is None


def test_an_unknown_shape_is_refused() -> None:
    with pytest.raises(UsageError, match=f"expected one of {', '.join(SHAPES)}, got llama"):
        published_config("llama")
