"""The operations that read weights: linear, expert_linear, embedding."""

import math
from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from tinyllm_ops import OpSet, QuantizedTensor, Weight
from tinyllm_qwen.checkpoint.weights import expected_shapes

from tinyllm_bench.cost import Cost, product_flops
from tinyllm_bench.op_case import OpCase, Regime, Work, activations, nbytes
from tinyllm_bench.prepared_layers import prepared_weights
from tinyllm_bench.random_weights import random_floats, random_packed
from tinyllm_bench.subject import Subject

# The mixture of experts for a model that has none: as many numbers as two MLP projections have,
# two experts a token.
EXPERTS, CHOSEN = 8, 2


def linear_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """Each projection of a layer, one case for each shape, and the head."""
    cases, seen = [], set()
    for name, shape in expected_shapes(subject.config).items():
        if not name.startswith("layers.0.") or len(shape) != 2 or shape in seen:
            continue
        seen.add(shape)
        part = name.removeprefix("layers.0.")
        layers = [w for other, w in subject.weights.items() if other.endswith(f".{part}")]
        cases += [_linear(part, layers, regime, subject) for regime in regimes]
    tied = subject.config.tie_word_embeddings
    head = subject.weights["embed_tokens.weight" if tied else "lm_head.weight"]
    # A prompt's logits are asked for after its last token alone.
    short = [regime for regime in regimes if regime.length == 1]
    return cases + [_linear("lm_head.weight", [head], regime, subject) for regime in short]


def _linear(part: str, layers: Sequence[Weight], regime: Regime, subject: Subject) -> OpCase:
    out, inner = layers[0].shape

    def make() -> Work:
        x = activations(regime.rows, regime.length, inner, dtype=subject.form.dtype)
        written = regime.tokens * out * x.dtype.size
        cost = Cost(nbytes(x, layers[0]) + written, product_flops(regime.tokens, inner, out))
        prepared, phase = prepared_weights(layers), regime.phase
        return Work(lambda ops, i: ops.linear(x, prepared.of(ops, i), phase=phase), cost)

    name = part.removesuffix(".weight").rsplit(".", 1)[-1]
    return OpCase("linear", f"{name} {out}x{inner}", regime, make)


def expert_linear_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """The experts' first projection; of made-up experts where the model has none."""
    experts = subject.config.experts
    chosen = CHOSEN if experts is None else experts.num_experts_per_tok
    layers = [
        w for name, w in subject.weights.items() if name.endswith("switch_mlp.gate_proj.weight")
    ]
    width, hidden = subject.config.hidden_size, subject.config.intermediate_size
    shape = (EXPERTS, max(1, hidden // 4), width) if experts is None else layers[0].shape

    def case(regime: Regime) -> OpCase:
        def make() -> Work:
            stacks = layers or [made_up_experts(subject, shape)]
            rows = regime.tokens * chosen
            # Spread over the experts as evenly as a router means to.
            routes = mx.array(np.sort(np.arange(rows) % shape[0]).astype(np.uint32))
            x = activations(rows, shape[-1], dtype=subject.form.dtype)
            mx.eval(routes)
            read = nbytes(stacks[0]) * min(rows, shape[0]) // shape[0]
            written = rows * shape[1] * x.dtype.size
            cost = Cost(
                nbytes(x, routes) + read + written, product_flops(rows, shape[-1], shape[1])
            )
            prepared, phase = prepared_weights(stacks), regime.phase

            def call(ops: OpSet, i: int) -> mx.array:
                return ops.expert_linear(x, prepared.of(ops, i), routes, phase=phase)

            return Work(call, cost)

        size = "x".join(map(str, shape))
        return OpCase("expert_linear", f"{chosen} of {size}", regime, make)

    return [case(regime) for regime in regimes]


def made_up_experts(subject: Subject, shape: tuple[int, ...]) -> Weight:
    """A random stack of matrices in the format of the model."""
    generator = np.random.default_rng(1)
    if subject.form.packed:
        stack = random_packed(shape, subject.form, generator)
    else:
        stack = random_floats(shape, subject.form.dtype, generator)
    mx.eval(stack if isinstance(stack, mx.array) else stack.arrays)
    return stack


def embedding_cases(subject: Subject, regimes: Sequence[Regime]) -> list[OpCase]:
    """The rows of random tokens."""
    table = subject.weights["embed_tokens.weight"]
    rows, width = table.shape
    row_bytes = nbytes(table) // rows

    def case(regime: Regime) -> OpCase:
        def make() -> Work:
            ids = mx.random.randint(0, rows, (regime.rows, regime.length))
            mx.eval(ids)
            dtype = table.scales.dtype if isinstance(table, QuantizedTensor) else table.dtype
            wide = 4 if dtype == mx.uint8 else dtype.size  # byte scales leave it open: float32
            moved = math.prod(ids.shape) * (row_bytes + width * wide)
            prepared = prepared_weights([table])
            return Work(
                lambda ops, i: ops.embedding(ids, prepared.of(ops, i)), Cost(moved + nbytes(ids))
            )

        return OpCase("embedding", f"{rows}x{width}", regime, make)

    return [case(regime) for regime in regimes]
