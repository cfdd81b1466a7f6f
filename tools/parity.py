"""Measures how far tinyllm is from mlx-lm and from transformers, as a table for docs/parity.md.

    uv run python tools/parity.py

mlx-lm computes beside us on random weights; transformers speaks through the golden files of
packages/tinyllm-qwen/tests/goldens/models (made by tools/goldens/qwen.py).
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import qwen2, qwen3
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import dequantize_model, quantize_model
from tinyllm_ops import MLX, REFERENCE, OpSet
from tinyllm_qwen import Qwen, QwenConfig
from tinyllm_qwen.weights import load_weights

GOLDENS = Path(__file__).parents[1] / "packages/tinyllm-qwen/tests/goldens/models"
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
QWEN2 = SHAPE | {"model_type": "qwen2", "tie_word_embeddings": True}
QWEN3 = SHAPE | {"model_type": "qwen3", "tie_word_embeddings": False, "head_dim": 64}
FAMILIES = {
    "qwen2": QWEN2,
    "qwen2, untied": QWEN2 | {"tie_word_embeddings": False},
    "qwen2, one k/v head": QWEN2 | {"num_key_value_heads": 1},
    "qwen3": QWEN3,
    "qwen3, tied": QWEN3 | {"tie_word_embeddings": True, "head_dim": 32},
}
FORMATS = {"float32": None, "8-bit, group 64": 8, "4-bit, group 64": 4}


@dataclass(frozen=True)
class Row:
    """One model, one oracle, one OpSet: what the table says of it."""

    model: str
    oracle: str
    ops: OpSet
    logits: float
    greedy: int

    def __str__(self) -> str:
        """The row as Markdown."""
        return (
            f"| {self.model} | {self.oracle} | {self.ops.name} | {self.logits:.1e} "
            f"| {self.greedy} of {STEPS} |"
        )


def error(actual: mx.array, expected: mx.array) -> float:
    """Largest difference over largest expected number."""
    return float(mx.abs(actual - expected).max()) / float(mx.abs(expected).max())


def greedy(step: Callable[[mx.array], mx.array], prompt: mx.array) -> list[int]:
    """The tokens that a cached model chooses after the prompt."""
    chosen, token = [], prompt
    for _ in range(STEPS):
        token = mx.argmax(step(token)[:, -1:], axis=-1)
        chosen.append(int(token))
    return chosen


def ours(model: Qwen, prompt: mx.array) -> list[int]:
    """Our greedy tokens."""
    cache = model.make_cache()
    return greedy(lambda token: model(token, cache, last_only=True), prompt)


def agreeing(a: list[int], b: list[int]) -> int:
    """How many tokens agree before the first that does not."""
    pairs = zip(a, b, strict=True)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), len(a))


def against_mlx_lm(family: str, form: str) -> Iterator[Row]:
    """Random weights in both; quantized ones against mlx-lm's dequantized float32 model."""
    mx.random.seed(7)
    config, bits = FAMILIES[family], FORMATS[form]
    module = qwen3 if config["model_type"] == "qwen3" else qwen2
    theirs = module.Model(module.ModelArgs.from_dict(config))
    theirs.load_weights(
        [
            (name, w + mx.random.normal(w.shape) * (0.1 if w.ndim > 1 else 0.3))
            for name, w in tree_flatten(theirs.parameters())
        ]
    )
    if bits is not None:
        with redirect_stdout(sys.stderr):  # where its progress belongs
            theirs, config = quantize_model(theirs, config, 64, bits)
    with TemporaryDirectory() as folder:
        tensors = dict(tree_flatten(theirs.parameters()))
        mx.save_safetensors(str(Path(folder) / "model.safetensors"), tensors)
        read = QwenConfig.from_hf(config)
        weights = load_weights(Path(folder), read)
    oracle = theirs if bits is None else dequantize_model(theirs)
    prompt = mx.random.randint(0, 320, (1, 19))
    cache = make_prompt_cache(oracle)
    expected = greedy(lambda token: oracle(token, cache=cache), prompt)
    for ops in (REFERENCE, MLX):
        model = Qwen(read, weights, ops=ops)
        tokens = agreeing(ours(model, prompt), expected)
        logits = error(model(prompt), oracle(prompt))
        yield Row(f"{family}, {form}", "mlx-lm", ops, logits, tokens)


def against_transformers(folder: Path) -> Iterator[Row]:
    """A golden model and what transformers computed with it."""
    expected = mx.load(str(folder / "expected.safetensors"))
    assert isinstance(expected, dict)  # a safetensors file is one
    config = QwenConfig.from_folder(folder)
    for ops in (REFERENCE, MLX):
        model = Qwen(config, load_weights(folder, config), ops=ops)
        logits = error(model(expected["tokens"]), expected["logits"])
        tokens = agreeing(ours(model, expected["tokens"][:1]), expected["greedy"].tolist())
        yield Row(f"{folder.name}, float32", "transformers", ops, logits, tokens)


def main() -> None:
    """Print the table."""
    print("| model | oracle | ops | logits, relative error | greedy tokens that agree |")
    print("|---|---|---|---|---|")
    for family in FAMILIES:
        for form in FORMATS:
            print(*against_mlx_lm(family, form), sep="\n", flush=True)
    for folder in sorted(GOLDENS.iterdir()):
        print(*against_transformers(folder), sep="\n", flush=True)


if __name__ == "__main__":
    main()
