"""Cases of the operations that read weights: linear, expert_linear, embedding."""

import math
from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from tinyllm_ops import OpSet, QuantizedTensor, Weight

from tinyllm_bench.cases.case import (
    OpCase,
    Regime,
    Work,
    activations,
    cases_of,
    nbytes,
    prepared_weights,
)
from tinyllm_bench.cost import Cost, product_flops
from tinyllm_bench.models.model import BenchModel
from tinyllm_bench.models.random_weights import random_tensor

# Number of random experts, and of experts per token, for a model without experts. The random
# experts together have as many weights as two MLP projections.
EXPERTS, EXPERTS_PER_TOKEN = 8, 2


def linear_cases(model: BenchModel, regimes: Sequence[Regime]) -> list[OpCase]:
    """Return cases for each distinct shape of a layer's projections, and for the head."""
    cases, seen = [], set()
    for name, weight in model.weights.items():
        if not name.startswith("layers.") or len(weight.shape) != 2 or weight.shape in seen:
            continue
        seen.add(weight.shape)
        part = name.split(".", 2)[2]  # without "layers" and the number of the layer
        layers = [w for other, w in model.weights.items() if other.endswith(f".{part}")]
        cases += _linear(part, layers, regimes, model)
    tied = model.config.tie_word_embeddings
    head = model.weights["embed_tokens.weight" if tied else "lm_head.weight"]
    # The head is not timed on prompts, because only the last token of a prompt needs logits.
    return cases + _linear("lm_head.weight", [head], [r for r in regimes if r.length == 1], model)


def _linear(
    part: str, layers: Sequence[Weight], regimes: Sequence[Regime], model: BenchModel
) -> list[OpCase]:
    out, inner = layers[0].shape

    def work(regime: Regime) -> Work:
        x = activations(regime.rows, regime.length, inner, dtype=model.format.dtype)
        written = regime.tokens * out * x.dtype.size
        cost = Cost(nbytes(x, layers[0]) + written, product_flops(regime.tokens, inner, out))
        prepared, phase = prepared_weights(layers), regime.phase
        return Work(lambda ops, i: ops.linear(x, prepared.of(ops, i), phase=phase), cost)

    name = part.removesuffix(".weight").rsplit(".", 1)[-1]
    return cases_of("linear", f"{name} {out}x{inner}", regimes, work)


def expert_linear_cases(model: BenchModel, regimes: Sequence[Regime]) -> list[OpCase]:
    """Return cases of the experts' gate projection, or of random experts without experts."""
    config = model.config
    experts = config.experts
    chosen = EXPERTS_PER_TOKEN if experts is None else experts.num_experts_per_tok
    layers = [
        w for name, w in model.weights.items() if name.endswith("switch_mlp.gate_proj.weight")
    ]
    random = (EXPERTS, max(1, config.intermediate_size // 4), config.hidden_size)
    shape = random if experts is None else layers[0].shape

    def work(regime: Regime) -> Work:
        stacks = layers or [random_experts(model, shape)]
        rows = regime.tokens * chosen
        # Rows are spread evenly over the experts, as the training of a router aims at.
        routes = mx.array(np.sort(np.arange(rows) % shape[0]).astype(np.uint32))
        x = activations(rows, shape[-1], dtype=model.format.dtype)
        mx.eval(routes)
        read = nbytes(stacks[0]) * min(rows, shape[0]) // shape[0]
        moved = nbytes(x, routes) + read + rows * shape[1] * x.dtype.size
        prepared, phase = prepared_weights(stacks), regime.phase

        def call(ops: OpSet, i: int) -> mx.array:
            return ops.expert_linear(x, prepared.of(ops, i), routes, phase=phase)

        return Work(call, Cost(moved, product_flops(rows, shape[-1], shape[1])))

    operand = f"{chosen} of {'x'.join(map(str, shape))}"
    return cases_of("expert_linear", operand, regimes, work)


def random_experts(model: BenchModel, shape: tuple[int, ...]) -> Weight:
    """Draw a stack of expert matrices in the format of the model."""
    stack = random_tensor(shape, model.format, np.random.default_rng(1))
    mx.eval(stack if isinstance(stack, mx.array) else stack.arrays)
    return stack


def embedding_cases(model: BenchModel, regimes: Sequence[Regime]) -> list[OpCase]:
    """Return cases that look up random tokens."""
    table = model.weights["embed_tokens.weight"]
    rows, width = table.shape
    dtype = table.scales.dtype if isinstance(table, QuantizedTensor) else table.dtype
    number_bytes = 4 if dtype == mx.uint8 else dtype.size  # with byte scales the result is float32
    row_bytes = nbytes(table) // rows + width * number_bytes

    def work(regime: Regime) -> Work:
        ids = mx.random.randint(0, rows, (regime.rows, regime.length))
        mx.eval(ids)
        prepared = prepared_weights([table])
        cost = Cost(math.prod(ids.shape) * row_bytes + nbytes(ids))
        return Work(lambda ops, i: ops.embedding(ids, prepared.of(ops, i)), cost)

    return cases_of("embedding", f"{rows}x{width}", regimes, work)
