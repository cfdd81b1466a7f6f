"""Measures the distance of tinyllm's logits and tokens from mlx-lm's and from transformers'.

    uv run python tools/parity.py

The tool writes one row for each model to docs/parity-tables.md, and prints the summary that
docs/parity.md has. tests/test_parity_page.py compares the two pages.

mlx-lm runs in the same process on the same random weights, in float32 for every format and dtype.
The results of transformers are read from packages/tinyllm-qwen/tests/goldens/models, which
tools/goldens/qwen.py writes.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, fields
from importlib import import_module
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.qwen2_moe import Qwen2MoeSparseMoeBlock
from mlx_lm.models.qwen3_moe import Qwen3MoeSparseMoeBlock
from mlx_lm.models.qwen3_next import Qwen3NextSparseMoeBlock
from mlx_lm.utils import dequantize_model, quantize_model
from parity_models import FAMILIES, FORMATS, SEEDS, Format
from tinyllm_kernels import available, opset
from tinyllm_ops import OpSet
from tinyllm_qwen import Qwen, QwenConfig
from tinyllm_qwen.checkpoint.weights import load_weights

ROOT = Path(__file__).parents[1]
GOLDENS = ROOT / "packages/tinyllm-qwen/tests/goldens/models"
TABLES = ROOT / "docs" / "parity-tables.md"
STEPS = 64
OPSETS = [
    opset(backend.name)
    for backend in reversed(available())
    if backend.present and not backend.rounds_more
]
DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
SPARSE_BLOCKS = (Qwen2MoeSparseMoeBlock, Qwen3MoeSparseMoeBlock, Qwen3NextSparseMoeBlock)


@dataclass(frozen=True)
class Row:
    """The distance of one model on one OpSet from one oracle.

    Attributes:
        model: the family, and the format if there is one.
        oracle: the program that computed the expected logits and tokens.
        ops: name of the OpSet that was measured.
        logits: error of the logits by dtype of the activations.
        greedy: number of greedy tokens before the first one that differs, in float32.
    """

    model: str
    oracle: str
    ops: str
    logits: dict[str, float]
    greedy: int

    def __str__(self) -> str:
        """The row as Markdown."""
        errors = " | ".join(f"{value:.1e}" for value in self.logits.values())
        return f"| {self.model} | {self.ops} | {errors} | {self.greedy} of {STEPS} |"


def errors_by_position(actual: mx.array, expected: mx.array) -> mx.array:
    """Largest difference at each position, divided by the largest expected number of all."""
    difference = mx.abs(actual.astype(mx.float32) - expected).max(-1).flatten()
    return difference / mx.abs(expected).max()


def error(actual: mx.array, expected: mx.array) -> float:
    """The error of the worst position in float32, of the median position in 16 bits.

    Random weights have positions that magnify any rounding before them, in mlx-lm too.
    """
    errors = mx.sort(errors_by_position(actual, expected))
    return float(errors[-1] if actual.dtype == mx.float32 else errors[errors.size // 2])


def greedy(step: Callable[[mx.array], mx.array], prompt: mx.array) -> list[int]:
    """Return the greedy tokens of a model with a cache after the prompt."""
    chosen, token = [], prompt
    for _ in range(STEPS):
        token = mx.argmax(step(token)[:, -1:], axis=-1)
        chosen.append(int(token))
    return chosen


def ours(model: Qwen, prompt: mx.array) -> list[int]:
    """Return the greedy tokens of tinyllm's model."""
    caches = model.make_caches()
    return greedy(lambda token: model(token, caches, last=1), prompt)


def agreeing(a: list[int], b: list[int]) -> int:
    """Count the tokens that agree before the first one that differs."""
    pairs = zip(a, b, strict=True)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), len(a))


def against_mlx_lm(family: str, form: Format) -> Iterator[Row]:
    """Compare with mlx-lm on random weights, rounded to each dtype on both sides.

    mlx-lm computes in float32 for every dtype.
    """
    mx.random.seed(SEEDS.get(family, 7))
    theirs, config = random_model(FAMILIES[family])
    prompt = mx.random.randint(0, 320, (1, 19))
    if form.bits is not None:
        with redirect_stdout(sys.stderr):  # mlx-lm prints its progress to stdout
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
        yield Row(f"{family}, {form}", "mlx-lm", ops.name, errors, tokens)


def random_model(config: dict[str, object]) -> tuple[Module, dict[str, object]]:
    """Return mlx-lm's model of a config, with larger weights than its initial ones."""
    module = import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    weights: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    larger = {
        name: w + mx.random.normal(w.shape) * (0.1 if w.ndim > 1 else 0.3)
        for name, w in weights.items()
    }
    # Slower decay than at initialization, so that a state depends on many tokens.
    slower = {name: w - 4.0 for name, w in larger.items() if name.endswith("dt_bias")}
    model.load_weights(list((larger | slower).items()))
    return model, config


def rounded(model: Module, dtype: mx.Dtype) -> Module:
    """Return a float32 copy of the model with the weights of a checkpoint of `dtype`.

    Rounded weights are other weights, not an error of the arithmetic. Without this step their
    rounding would be the largest error: codes of 8 bits multiply the error of a rounded scale by
    up to 255.
    """
    model = deepcopy(model)
    # Checkpoints keep these numbers in float32, whatever their dtype.
    weights: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    kept = [(name, w) for name, w in weights.items() if name.endswith("A_log")]
    model.set_dtype(dtype)
    model.set_dtype(mx.float32)
    model.load_weights(kept, strict=False)
    model = dequantize_model(model)
    model.set_dtype(mx.float32)  # mlx-lm unpacks mxfp4, mxfp8 and nvfp4 to bfloat16, exactly
    return model


def watch_routers(model: Module) -> list[mx.array]:
    """Record the experts that mlx-lm's routers choose.

    Returns:
        A list that grows while the model runs, by one array `N X` for each layer of experts. An
        array is True at the K chosen experts of each row.
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
        if isinstance(layer.mlp, SPARSE_BLOCKS):
            layer.mlp.gate = watched(layer.mlp.gate, layer.mlp.top_k)
    return choices


def hold_experts(ops: OpSet, choices: Sequence[mx.array]) -> OpSet:
    """Return an OpSet that routes to the recorded experts, for one pass over the layers.

    The result is no `Backend`: layers run one by one, because a native stack routes by itself.

    Where two experts have almost the same score, the rounding before the router decides, in any
    implementation. That is no arithmetic error, but it moves the logits of the token and, through
    attention, of all tokens after it.
    """
    if not choices:
        return ops
    layers = iter(choices)

    def softmax(x: mx.array, axis: int = -1) -> mx.array:
        return mx.where(next(layers), ops.softmax(x, axis), 0)

    # A router ranks the results of `softmax`. No other layer of a model calls this op.
    fine = {field.name: getattr(ops, field.name) for field in fields(OpSet)}
    return OpSet(**(fine | {"softmax": softmax}))


def against_transformers(folder: Path) -> Iterator[Row]:
    """Compare with the results of transformers on a golden model, in float32."""
    expected = mx.load(str(folder / "expected.safetensors"))
    assert isinstance(expected, dict)  # a safetensors file is one
    config = QwenConfig.from_folder(folder)
    for ops in OPSETS:
        model = Qwen(config, load_weights(folder, config), ops=ops)
        errors = {"float32": error(model(expected["tokens"]), expected["logits"])}
        oracle = [int(token) for token in expected["greedy"]]
        tokens = agreeing(ours(model, expected["tokens"][:1]), oracle)
        yield Row(folder.name, "transformers", ops.name, errors, tokens)


def table(head: Sequence[str], rows: Iterable[object]) -> str:
    """Return a Markdown table."""
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *map(str, rows)])


def tables(rows: Sequence[Row]) -> str:
    """Return the text of docs/parity-tables.md: one section for each oracle."""
    sections = [
        "# Parity of every model",
        "`uv run python tools/parity.py` writes this page.\n"
        "[Parity](parity.md) explains and sums up the numbers.",
    ]
    for oracle in dict.fromkeys(row.oracle for row in rows):
        own = [row for row in rows if row.oracle == oracle]
        head = ["model", "ops", *(f"logits, {dtype}" for dtype in own[0].logits), "greedy tokens"]
        sections += [f"## {oracle}", table(head, own)]
    return "\n\n".join(sections) + "\n"


def read_tables(text: str) -> list[Row]:
    """Return the rows of docs/parity-tables.md."""
    rows, oracle, dtypes = [], "", []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("## "):
            oracle = line.removeprefix("## ")
        elif cells[0] == "model":
            dtypes = [cell.removeprefix("logits, ") for cell in cells[2:-1]]
        elif len(cells) > 3 and not line.startswith("|---"):
            errors = dict(zip(dtypes, map(float, cells[2:-1]), strict=True))
            greedy = int(cells[-1].removesuffix(f" of {STEPS}"))
            rows.append(Row(cells[0], oracle, cells[1], errors, greedy))
    return rows


def summary(rows: Sequence[Row]) -> str:
    """Return the table of docs/parity.md: the worst model for each oracle and OpSet."""
    lines = []
    for oracle, ops in dict.fromkeys((row.oracle, row.ops) for row in rows):
        own = [row for row in rows if (row.oracle, row.ops) == (oracle, ops)]
        worst = [
            f"{max(row.logits[dtype] for row in own):.1e}" if dtype in own[0].logits else ""
            for dtype in DTYPES
        ]
        greedy = f"{min(row.greedy for row in own)} of {STEPS}"
        lines.append(f"| {oracle} | {ops} | {len(own)} | {' | '.join(worst)} | {greedy} |")
    return table(["oracle", "ops", "models", *DTYPES, "greedy tokens"], lines)


def main() -> None:
    """Measure all models, write the tables and print their summary."""
    argparse.ArgumentParser(
        prog="parity", description=__doc__
    ).parse_args()  # --help measures nothing
    rows: list[Row] = []
    for family, form in product(FAMILIES, FORMATS):
        rows += against_mlx_lm(family, form)
        print(rows[-1], file=sys.stderr, flush=True)
    for folder in sorted(GOLDENS.iterdir()):
        rows += against_transformers(folder)
    TABLES.write_text(tables(rows), encoding="utf-8")
    print(summary(rows))


if __name__ == "__main__":
    main()
