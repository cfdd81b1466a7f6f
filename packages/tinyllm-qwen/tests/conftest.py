"""Small random checkpoints, written by MLX in the layouts of Hugging Face and mlx-lm."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import mlx.core as mx
import pytest
from tinyllm_ops.testing.fixtures import unchecked
from tinyllm_qwen.checkpoint.schema import expected_shapes
from tinyllm_qwen.config.qwen import QwenConfig

__all__ = ["checkpoint_in", "random_checkpoint", "unchecked"]

QWEN2: dict[str, object] = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.1",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 96,
}
QWEN3: dict[str, object] = QWEN2 | {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "head_dim": 32,
    "model_type": "qwen3",
    "rope_scaling": None,
    "sliding_window": None,
}
QWEN3_MOE: dict[str, object] = QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
}
FAMILIES = {"qwen2": QWEN2, "qwen3": QWEN3, "qwen3_moe": QWEN3_MOE}


class RandomCheckpoint:
    """A folder with config.json and random weights, and the tensors that were written to it."""

    def __init__(self, folder: Path, config: dict[str, object]) -> None:
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        self.tensors: dict[str, mx.array] = {}
        (folder / "config.json").write_text(json.dumps(config))
        self.config = QwenConfig.from_hf(config)

    def fill(self, dtype: mx.Dtype = mx.bfloat16) -> "RandomCheckpoint":
        """Draw every tensor that the config implies."""
        self.tensors = {
            name: mx.random.normal(shape).astype(dtype)
            for name, shape in expected_shapes(self.config).items()
        }
        return self

    def quantize(
        self, paths: Iterable[str], group_size: int, bits: int, mode: str = "affine"
    ) -> "RandomCheckpoint":
        """Pack matrices with `mx.quantize`, as `mlx_lm.convert` stores them."""
        for path in paths:
            weight = self.tensors[f"{path}.weight"]
            parts = mx.quantize(weight, group_size=group_size, bits=bits, mode=mode)
            names = (f"{path}.weight", f"{path}.scales", f"{path}.biases")
            self.tensors |= dict(zip(names, parts, strict=False))
        return self

    def save(self, *, prefix: str = "model.", shards: int = 1) -> "RandomCheckpoint":
        """Write the tensors to `shards` files, with `prefix` before every name except lm_head."""
        names = {
            name: name if name.startswith("lm_head") else prefix + name for name in self.tensors
        }
        if shards == 1:
            tensors = {names[name]: tensor for name, tensor in self.tensors.items()}
            mx.save_safetensors(str(self.folder / "model.safetensors"), tensors)
            return self
        weight_map: dict[str, str] = {}
        for shard in range(shards):
            file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
            part = {names[name]: self.tensors[name] for name in list(self.tensors)[shard::shards]}
            mx.save_safetensors(str(self.folder / file), part)
            weight_map |= dict.fromkeys(part, file)
        index = self.folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        return self


@pytest.fixture(scope="session")
def checkpoint_in() -> Callable[..., RandomCheckpoint]:
    """Return a function that makes a checkpoint of a family; `fields` replace config fields."""

    def make(folder: Path, family: str, **fields: object) -> RandomCheckpoint:
        return RandomCheckpoint(folder, FAMILIES[family] | fields)

    return make


@pytest.fixture
def random_checkpoint(
    tmp_path: Path, checkpoint_in: Callable[..., RandomCheckpoint]
) -> Callable[..., RandomCheckpoint]:
    """Return a function that makes a checkpoint in the temporary folder of the test."""

    def make(family: str = "qwen3", **fields: object) -> RandomCheckpoint:
        return checkpoint_in(tmp_path / "checkpoint", family, **fields)

    return make
