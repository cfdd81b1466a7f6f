"""Models by name: what their publishers wrote into `config.json`."""

from collections.abc import Mapping

from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.config.json_object import read_json_object

from tinyllm_bench.errors import UsageError

PICO = "pico"

_PUBLISHED: Mapping[str, Mapping[str, object]] = {
    "qwen3-0.6b": {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "attention_bias": False,
        "tie_word_embeddings": True,
    },
    "qwen3-4b": {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "attention_bias": False,
        "tie_word_embeddings": True,
    },
    "qwen2.5-0.5b": {
        "model_type": "qwen2",
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "tie_word_embeddings": True,
    },
}

SHAPES = (PICO, *_PUBLISHED)


def published_config(shape: str) -> dict[str, object]:
    """The config of a named shape, without its quantization.

    Raises:
        UsageError: if there is no such shape.
    """
    if shape == PICO:
        config = read_json_object(resolve(PICO) / "config.json")
        return {name: value for name, value in config.items() if "quantization" not in name}
    if shape not in _PUBLISHED:
        raise UsageError(f"--shape: expected one of {', '.join(SHAPES)}, got {shape}")
    return dict(_PUBLISHED[shape])
