"""Measures how far tinyllm is from mlx-lm and from transformers, as tables for docs/parity.md.

    uv run python tools/parity.py

mlx-lm computes beside us on random weights, in float32 whatever the format and the dtype;
transformers speaks through the golden files of packages/tinyllm-qwen/tests/goldens/models (made by
tools/goldens/qwen.py).
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import mlx.core as mx
import mlx.nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.qwen3_moe import Qwen3MoeSparseMoeBlock
from mlx_lm.utils import dequantize_model, quantize_model
from tinyllm_kernels import available, opset
from tinyllm_ops import OpSet
from tinyllm_qwen import Qwen, QwenConfig
from tinyllm_qwen.checkpoint.weights import load_weights

GOLDENS = Path(__file__).parents[1] / "packages/tinyllm-qwen/tests/goldens/models"
STEPS = 64
OPSETS = [opset(backend.name) for backend in reversed(available()) if backend.present]
DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
SHAPE: dict[str, object] = {
    "vocab_size": 320,
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "hidden_act": "silu",
}
QWEN2 = SHAPE | {"model_type": "qwen2", "tie_word_embeddings": True}
QWEN3 = SHAPE | {"model_type": "qwen3", "tie_word_embeddings": False, "head_dim": 64}
EXPERTS = QWEN3 | {
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 128,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
FAMILIES = {
    "qwen2": QWEN2,
    "qwen2, untied": QWEN2 | {"tie_word_embeddings": False},
    "qwen2, one k/v head": QWEN2 | {"num_key_value_heads": 1},
    "qwen3": QWEN3,
    "qwen3, tied": QWEN3 | {"tie_word_embeddings": True, "head_dim": 32},
    "qwen3, YaRN": QWEN3 | {"rope_scaling": YARN},
    "qwen3-moe": EXPERTS,
    "qwen3-moe, an MLP in layer 1": EXPERTS | {"mlp_only_layers": [1], "norm_topk_prob": False},
}


@dataclass(frozen=True)
class Format:
    """The arguments of `mx.quantize`; without bits, weights are not quantized."""

    group_size: int | None = None
    bits: int | None = None
    mode: str = "affine"

    def __str__(self) -> str:
        """Return the row as Markdown."""
        if self.bits is None:
            return "not packed"
        if self.mode == "affine":
            return f"{self.bits}-bit, group {self.group_size}"
        return self.mode


PLAIN = Format()
FORMATS = (
    PLAIN,
    *(Format(64, bits) for bits in (2, 3, 4, 5, 6, 8)),
    Format(32, 4),
    Format(128, 4),
    Format(32, 4, "mxfp4"),
    Format(32, 8, "mxfp8"),
    Format(16, 4, "nvfp4"),
)


@dataclass(frozen=True)
class Row:
    """A row of the table: one model, one oracle, one OpSet.

    Attributes:
        model: the family, and the format if there is one.
        oracle: whose logits and tokens are right.
        ops: the OpSet that was measured.
        logits: error of the logits by dtype of the activations.
        greedy: greedy tokens that agree in float32.
    """

    model: str
    oracle: str
    ops: OpSet
    logits: dict[str, float]
    greedy: int

    def __str__(self) -> str:
        """The row as Markdown."""
        errors = " | ".join(f"{value:.1e}" for value in self.logits.values())
        return f"| {self.model} | {self.ops.name} | {errors} | {self.greedy} of {STEPS} |"


def errors_by_position(actual: mx.array, expected: mx.array) -> mx.array:
    """At each position the largest difference, over the largest expected number of all."""
    difference = mx.abs(actual.astype(mx.float32) - expected).max(-1).flatten()
    return difference / mx.abs(expected).max()


def error(actual: mx.array, expected: mx.array) -> float:
    """The worst position in float32, the middle one in the half formats.

    Random weights leave positions that magnify whatever rounding comes before them, in mlx-lm too.
    """
    errors = mx.sort(errors_by_position(actual, expected))
    return float(errors[-1] if actual.dtype == mx.float32 else errors[errors.size // 2])


def greedy(step: Callable[[mx.array], mx.array], prompt: mx.array) -> list[int]:
    """The tokens that a cached model chooses after the prompt."""
    chosen, token = [], prompt
    for _ in range(STEPS):
        token = mx.argmax(step(token)[:, -1:], axis=-1)
        chosen.append(int(token))
    return chosen


def ours(model: Qwen, prompt: mx.array) -> list[int]:
    """Return the greedy tokens of tinyllm."""
    cache = model.make_cache()
    return greedy(lambda token: model(token, cache, last=1), prompt)


def agreeing(a: list[int], b: list[int]) -> int:
    """Return the number of tokens that agree before the first difference."""
    pairs = zip(a, b, strict=True)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), len(a))


def against_mlx_lm(family: str, form: Format) -> Iterator[Row]:
    """Random weights in both, rounded alike to each dtype; mlx-lm computes in float32."""
    mx.random.seed(7)
    theirs, config = random_model(FAMILIES[family])
    prompt = mx.random.randint(0, 320, (1, 19))
    if form.bits is not None:
        with redirect_stdout(sys.stderr):  # where its progress belongs
            theirs, config = quantize_model(
                theirs, config, form.group_size, form.bits, mode=form.mode
            )
    read = QwenConfig.from_hf(config)
    with TemporaryDirectory() as folder:
        tensors = dict(tree_flatten(theirs.parameters()))
        mx.save_safetensors(str(Path(folder) / "model.safetensors"), tensors)
        weights = {
            name: load_weights(Path(folder), read, dtype=dtype) for name, dtype in DTYPES.items()
        }
    oracles = {name: rounded(theirs, dtype) for name, dtype in DTYPES.items()}
    cache = make_prompt_cache(oracles["float32"])
    expected = greedy(lambda token: oracles["float32"](token, cache=cache), prompt)
    choices = {name: watch_routers(oracle) for name, oracle in oracles.items()}
    logits = {name: oracle(prompt) for name, oracle in oracles.items()}
    for ops in OPSETS:
        tokens = agreeing(ours(Qwen(read, weights["float32"], ops=ops), prompt), expected)
        errors = {}
        for name, tensors in weights.items():
            steady = ops if name == "float32" else hold_experts(ops, choices[name])
            errors[name] = error(Qwen(read, tensors, ops=steady)(prompt), logits[name])
        yield Row(f"{family}, {form}", "mlx-lm", ops, errors, tokens)


def random_model(config: dict[str, object]) -> tuple[mlx.nn.Module, dict[str, object]]:
    """Return mlx-lm's model of a config, with weights far from its small initial weights."""
    module = import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    model.load_weights(
        [  # type: ignore[str-unpack]
            (name, w + mx.random.normal(w.shape) * (0.1 if w.ndim > 1 else 0.3))
            for name, w in tree_flatten(model.parameters())
        ]
    )
    return model, config


def rounded(model: mlx.nn.Module, dtype: mx.Dtype) -> mlx.nn.Module:
    """Return a float32 copy of the model with the values of a checkpoint of `dtype`, unpacked.

    Rounding of weights is no error of the model code that computes with them. It would outweigh
    all other errors: codes of 8 bits multiply the error of a rounded scale by up to 255.
    """
    model = deepcopy(model)
    model.set_dtype(dtype)
    model.set_dtype(mx.float32)
    model = dequantize_model(model)
    model.set_dtype(mx.float32)  # bfloat16 is what the float formats are read back as, exactly
    return model


def watch_routers(model: mlx.nn.Module) -> list[mx.array]:
    """Have mlx-lm's routers note their choices as they make them.

    Returns:
        What fills up while the model computes: for each layer of experts `N X`, true at K of X.
    """
    choices: list[mx.array] = []

    def watched(
        gate: Callable[[mx.array], mx.array], chosen: int
    ) -> Callable[[mx.array], mx.array]:
        def score(x: mx.array) -> mx.array:
            scores = gate(x)
            rows = scores.reshape(-1, scores.shape[-1])  # N X
            choices.append(rows >= mx.sort(rows, axis=-1)[:, -chosen, None])
            return scores

        return score

    for layer in model.layers:
        if isinstance(layer.mlp, Qwen3MoeSparseMoeBlock):
            layer.mlp.gate = watched(layer.mlp.gate, layer.mlp.top_k)  # type: ignore[assignment]
    return choices


def hold_experts(ops: OpSet, choices: Sequence[mx.array]) -> OpSet:
    """The OpSet with the experts of another model, for one pass over the layers.

    The result is no `Backend`: layers run one by one, because a native stack routes by itself.

    A token near the border between two experts falls to either by the rounding before the router,
    in any implementation. That is not arithmetic gone wrong, yet it moves the token's logits and,
    through attention, those of all tokens after it.
    """
    if not choices:
        return ops
    layers = iter(choices)

    def softmax(x: mx.array, axis: int = -1) -> mx.array:
        return mx.where(next(layers), ops.softmax(x, axis), 0)

    # A router ranks the results of `softmax`, and nothing else in a model calls this op.
    fine = {field.name: getattr(ops, field.name) for field in fields(OpSet)}
    return OpSet(**(fine | {"softmax": softmax}))


def against_transformers(folder: Path) -> Iterator[Row]:
    """A golden model and what transformers computed with it, in float32."""
    expected = mx.load(str(folder / "expected.safetensors"))
    assert isinstance(expected, dict)  # a safetensors file is one
    config = QwenConfig.from_folder(folder)
    for ops in OPSETS:
        model = Qwen(config, load_weights(folder, config), ops=ops)
        errors = {"float32": error(model(expected["tokens"]), expected["logits"])}
        tokens = agreeing(ours(model, expected["tokens"][:1]), expected["greedy"].tolist())  # type: ignore[arg-type]
        yield Row(folder.name, "transformers", ops, errors, tokens)


def heading(oracle: str, dtypes: list[str]) -> str:
    """The head of a table."""
    columns = ["model", "ops", *(f"logits, {dtype}" for dtype in dtypes), "greedy tokens"]
    return f"\n{oracle}:\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


def main() -> None:
    """Print the tables."""
    print(heading("mlx-lm", list(DTYPES)))
    for family in FAMILIES:
        for form in FORMATS:
            print(*against_mlx_lm(family, form), sep="\n", flush=True)
    print(heading("transformers", ["float32"]))
    for folder in sorted(GOLDENS.iterdir()):
        print(*against_transformers(folder), sep="\n", flush=True)


if __name__ == "__main__":
    main()
