"""Cases of decoder layers and their parts."""

import dataclasses
from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest
from layers.cases import CASES
from tinyllm_bench.cases.case import OpCase
from tinyllm_bench.cases.registry import op_cases
from tinyllm_bench.models.model import BenchModel
from tinyllm_bench.opsets import all_opsets
from tinyllm_bench.settings import Settings
from tinyllm_layers import Backend, DecoderLayer, LayerStack
from tinyllm_ops import MLX, Fusion, OpSet

SETTINGS = Settings(prompt_tokens=4, context=6, batch=2, decode_tokens=2, seconds=1e-4)
ATTENTION = 2 * 256 * 256 + 2 * 128 * 256  # numbers of q, o, k and v of a layer of pico


@pytest.fixture(scope="module")
def pico() -> BenchModel:
    return BenchModel.make(SETTINGS)


def plain(y: object) -> np.ndarray:
    assert isinstance(y, mx.array)
    return np.array(y.astype(mx.float32))


def cases(model: BenchModel, layer: str) -> list[OpCase]:
    return op_cases(model, dataclasses.replace(SETTINGS, op=[layer]), CASES)


@pytest.mark.parametrize("layer", CASES)
def test_all_opsets_compute_the_same_from_a_cases_inputs(pico: BenchModel, layer: str) -> None:
    found = cases(pico, layer)
    assert {case.regime.name for case in found} == {"decode", "batch", "prefill"}
    for case in found:
        work = case.make()
        first, *others = (plain(work.call(ops, 3)) for ops in all_opsets())
        assert np.isfinite(first).all()
        for other in others:
            assert np.abs(first - other).max() <= 1e-4 * np.abs(first).max() + 1e-6


@pytest.mark.parametrize("ops", all_opsets(), ids=lambda ops: ops.name)
@pytest.mark.parametrize("layer", ["GroupedQueryAttention", "DecoderLayer"])
def test_calls_start_from_the_same_context(pico: BenchModel, layer: str, ops: OpSet) -> None:
    for case in cases(pico, layer):
        work = case.make()
        first, *_, again = (plain(work.call(ops, i)) for i in range(7))  # pico has six layers
        assert np.array_equal(first, again)


def test_the_stack_of_a_backend_computes_a_decoder_layer(pico: BenchModel) -> None:
    made: list[object] = []

    def factory(layers: Sequence[DecoderLayer]) -> LayerStack:
        made.append(layers)
        return LayerStack(layers)

    fields = {field.name: getattr(MLX, field.name) for field in dataclasses.fields(OpSet)}
    backend = Backend(**fields | {"name": "own", "stack": Fusion(factory, of=("linear",))})
    for case in cases(pico, "DecoderLayer"):
        made.clear()
        case.make().call(backend, 0)
        assert len(made) == pico.config.num_hidden_layers


# pico in 4 bits of group 64 and float32: a matrix has 4 + 2 * 32 / 64 = 5 bits a number.
@pytest.mark.parametrize(
    ("layer", "operand", "regime", "expected"),
    [
        (
            "MLP",
            "768x256",
            "batch",
            (2 * 2 * 256 * 4 + 3 * 256 * 768 * 5 // 8, 2 * 2 * 3 * 256 * 768),
        ),
        (
            "MoE",  # two tokens, two experts each: four of the eight are read
            "2 of 8x192x256",
            "batch",
            (
                2 * 2 * 256 * 4 + 8 * 256 * 4 + 4 * 3 * 192 * 256 * 5 // 8,
                2 * 2 * (8 * 256 + 2 * 3 * 192 * 256),
            ),
        ),
        (
            "GroupedQueryAttention",
            "4/2 heads of 64",
            "decode",
            (
                2 * 256 * 4 + ATTENTION * 5 // 8 + 2 * 64 * 4 + 2 * 2 * 7 * 64 * 4,
                2 * ATTENTION + 4 * 4 * 64 * 7,
            ),
        ),
        (
            "DecoderLayer",
            "8-bit",
            "decode",
            (
                (2 * 256 + 2 * 256) * 4
                + ATTENTION * 5 // 8
                + 2 * 64 * 4
                + 2 * 2 * 7 * (64 + 8)
                + 3 * 256 * 768 * 5 // 8,
                2 * ATTENTION + 4 * 4 * 64 * 7 + 2 * 3 * 256 * 768,
            ),
        ),
    ],
)
def test_the_cost_of_a_call_by_hand(
    pico: BenchModel, layer: str, operand: str, regime: str, expected: tuple[int, int]
) -> None:
    (case,) = (
        case for case in cases(pico, layer) if (case.operand, case.regime.name) == (operand, regime)
    )
    cost = case.make().cost
    assert (cost.bytes, cost.flops) == expected
