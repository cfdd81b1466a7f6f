"""The same random weights in tinyllm and in mlx-lm: the same logits, the same greedy tokens."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import qwen2, qwen3
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import dequantize_model, quantize_model
from tinyllm_ops import MLX, REFERENCE, OpSet
from tinyllm_qwen.config import QwenConfig
from tinyllm_qwen.model import Qwen
from tinyllm_qwen.weights import load_weights

Oracle = qwen2.Model | qwen3.Model

LOGITS = 1e-4  # relative to the largest logit, float32
STEPS = 64
SHAPE: dict[str, object] = {
    "vocab_size": 320,
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "hidden_act": "silu",
}
FAMILIES: dict[str, dict[str, object]] = {
    "qwen2 tied": SHAPE | {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2 untied": SHAPE | {"model_type": "qwen2", "tie_word_embeddings": False},
    "qwen2 one kv head": SHAPE
    | {"model_type": "qwen2", "tie_word_embeddings": True, "num_key_value_heads": 1},
    "qwen3 tied": SHAPE | {"model_type": "qwen3", "head_dim": 64, "tie_word_embeddings": True},
    "qwen3 untied": SHAPE | {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": False},
}


@pytest.fixture(params=FAMILIES)
def config(request: pytest.FixtureRequest) -> dict[str, object]:
    chosen: dict[str, object] = FAMILIES[request.param]
    return chosen


@pytest.fixture
def oracle(config: dict[str, object]) -> Oracle:
    mx.random.seed(7)
    module = qwen3 if config["model_type"] == "qwen3" else qwen2
    model = module.Model(module.ModelArgs.from_dict(config))
    drawn = [
        (name, w + mx.random.normal(w.shape) * (0.1 if w.ndim > 1 else 0.3))
        for name, w in tree_flatten(model.parameters())
    ]
    model.load_weights(drawn)
    return model


def save(oracle: Oracle, folder: Path) -> None:
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(oracle.parameters())))


@pytest.mark.parametrize("ops", [REFERENCE, MLX], ids=lambda ops: ops.name)
def test_logits_and_64_greedy_tokens_are_those_of_mlx_lm(
    config: dict[str, object], oracle: Oracle, ops: OpSet, tmp_path: Path
) -> None:
    save(oracle, tmp_path)
    read = QwenConfig.from_hf(config)
    model = Qwen(read, load_weights(tmp_path, read), ops=ops)
    prompt = mx.random.randint(0, 320, (1, 19))
    expected = np.array(oracle(prompt))
    error = np.abs(np.array(model(prompt)) - expected).max() / np.abs(expected).max()
    assert error < LOGITS

    caches, theirs = model.make_cache(), make_prompt_cache(oracle)
    ours_next, theirs_next = prompt, prompt
    for step in range(STEPS):
        ours_next = mx.argmax(model(ours_next, caches, last_only=True), axis=-1)
        theirs_next = mx.argmax(oracle(theirs_next, cache=theirs)[:, -1:], axis=-1)
        assert int(ours_next) == int(theirs_next), f"step {step}"


@pytest.mark.parametrize("bits", [4, 8])
def test_a_model_that_mlx_lm_quantized_is_its_dequantized_float32_self(
    config: dict[str, object], oracle: Oracle, bits: int, tmp_path: Path
) -> None:
    quantized, quantized_config = quantize_model(oracle, config, 64, bits)
    save(quantized, tmp_path)
    read = QwenConfig.from_hf(quantized_config)
    packed = load_weights(tmp_path, read)
    assert any(not isinstance(w, mx.array) for w in packed.values())
    expected_model = dequantize_model(quantized)
    prompt = mx.random.randint(0, 320, (1, 19))
    expected = np.array(expected_model(prompt))
    for ops in (REFERENCE, MLX):
        logits = np.array(Qwen(read, packed, ops=ops)(prompt))
        assert np.abs(logits - expected).max() / np.abs(expected).max() < LOGITS
