"""Published shapes: the fields of their config.json, without weights."""

from tinyllm_cli.messages import UsageError

PICO = "pico"

_QWEN3 = {
    "model_type": "qwen3",
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "attention_bias": False,
}
_QWEN2 = {"model_type": "qwen2", "num_key_value_heads": 2, "max_position_embeddings": 32768}
_QWEN3_MOE = _QWEN3 | {
    "model_type": "qwen3_moe",
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
_QWEN3_5 = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248_320,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 262_144,
    "attention_bias": False,
    "attn_output_gate": True,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000,
        "partial_rotary_factor": 0.25,
    },
}
_QWEN3_5_MOE = _QWEN3_5 | {
    "model_type": "qwen3_5_moe_text",
    "tie_word_embeddings": False,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
# By name: the common part of the config, and the sizes of `_SIZES`.
_PUBLISHED = {
    "qwen3-0.6b": (_QWEN3, (1024, 3072, 28, 16)),
    "qwen3-4b": (_QWEN3, (2560, 9728, 36, 32)),
    "qwen3-30b-a3b": (_QWEN3_MOE, (2048, 6144, 48, 32)),
    "qwen2.5-0.5b": (_QWEN2, (896, 4864, 24, 14)),
    "qwen3.5-0.8b": (
        _QWEN3_5 | {"linear_num_value_heads": 16},
        (1024, 3584, 24, 8),
    ),
    "qwen3.5-4b": (
        _QWEN3_5 | {"num_key_value_heads": 4},
        (2560, 9216, 32, 16),
    ),
    "qwen3.5-35b-a3b": (_QWEN3_5_MOE, (2048, 512, 40, 16)),
}
_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")

SHAPES = (PICO, *_PUBLISHED)


def published_config(shape: str) -> dict[str, object]:
    """Return the config of a named shape, without its quantization.

    Raise `UsageError` if there is no such shape.
    """
    if shape == PICO:
        # Imported here, because the help of `bench` lists the shapes and does not need MLX.
        from tinyllm_qwen.checkpoint.hub import resolve
        from tinyllm_qwen.config.json_object import read_json_object

        config = read_json_object(resolve(PICO) / "config.json")
        return {name: value for name, value in config.items() if "quantization" not in name}
    if shape not in _PUBLISHED:
        raise UsageError(f"--shape: expected one of {', '.join(SHAPES)}, got {shape}")
    common, sizes = _PUBLISHED[shape]
    qwen = {"vocab_size": 151936, "rms_norm_eps": 1e-6}
    rotation = {} if "rope_parameters" in common else {"rope_theta": 1000000}
    return {
        **qwen,
        **rotation,
        "tie_word_embeddings": True,
        **common,
        **dict(zip(_SIZES, sizes, strict=True)),
    }
