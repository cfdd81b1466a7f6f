"""Published model shapes: the `config.json` of each named model."""

from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.config.json_object import read_json_object

from tinyllm_bench.errors import UsageError

PICO = "pico"

_QWEN3 = {
    "model_type": "qwen3",
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "attention_bias": False,
}
_QWEN2 = {"model_type": "qwen2", "num_key_value_heads": 2, "max_position_embeddings": 32768}
# For each name: the common part of the config, and the values of `_SIZES`.
_PUBLISHED = {
    "qwen3-0.6b": (_QWEN3, (1024, 3072, 28, 16)),
    "qwen3-4b": (_QWEN3, (2560, 9728, 36, 32)),
    "qwen2.5-0.5b": (_QWEN2, (896, 4864, 24, 14)),
}
_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")

SHAPES = (PICO, *_PUBLISHED)


def published_config(shape: str) -> dict[str, object]:
    """Return the config of a named shape, without its quantization.

    Raise `UsageError` if there is no such shape.
    """
    if shape == PICO:
        config = read_json_object(resolve(PICO) / "config.json")
        return {name: value for name, value in config.items() if "quantization" not in name}
    if shape not in _PUBLISHED:
        raise UsageError(f"--shape: expected one of {', '.join(SHAPES)}, got {shape}")
    common, sizes = _PUBLISHED[shape]
    qwen = {"vocab_size": 151936, "rms_norm_eps": 1e-6, "rope_theta": 1000000}
    return {**qwen, "tie_word_embeddings": True, **common, **dict(zip(_SIZES, sizes, strict=True))}
