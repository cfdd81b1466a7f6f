"""Cases of operations: every OpSet computes the same from the inputs of a case."""

import dataclasses

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_bench.cases.case import OpCase
from tinyllm_bench.cases.recurrent import RECURRENT_OPS
from tinyllm_bench.cases.registry import (
    CASES,
    op_cases,
    op_comparison,
    regimes_of,
)
from tinyllm_bench.models.model import BenchModel
from tinyllm_bench.models.random_weights import random_weights
from tinyllm_bench.opsets import all_opsets, choose_opsets
from tinyllm_bench.rounds import Result
from tinyllm_bench.settings import Settings
from tinyllm_cli.messages import UsageError
from tinyllm_ops import OpSet, QuantizedTensor, dequantize
from tinyllm_qwen import QwenConfig
from tinyllm_qwen.testing import SHAPES, hybrid_checkpoint

SETTINGS = Settings(prompt_tokens=4, context=6, batch=2, decode_tokens=2, seconds=1e-4)


def plain(y: object) -> np.ndarray:
    dense = dequantize(y) if isinstance(y, QuantizedTensor) else y
    assert isinstance(dense, mx.array)
    return np.array(dense.astype(mx.float32))


def test_every_field_of_the_contract_has_cases(pico: BenchModel) -> None:
    fields = {field.name for field in dataclasses.fields(OpSet)} - {"name"}
    assert set(CASES) == fields
    found = {(case.op, case.regime.name) for case in op_cases(pico, SETTINGS)}
    # pico has no recurrent layers.
    expected = set(CASES) - set(RECURRENT_OPS)
    assert found == {(op, regime) for op in expected for regime in ("decode", "batch", "prefill")}


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> BenchModel:
    folder = tmp_path_factory.mktemp("hybrid") / "model"
    hybrid_checkpoint(folder, SHAPES["tiny"], files="mlx")
    return BenchModel.make(dataclasses.replace(SETTINGS, model=str(folder), shape=None))


def test_a_hybrid_model_has_cases_of_recurrent_layers(hybrid: BenchModel) -> None:
    for op in RECURRENT_OPS:
        cases = op_cases(hybrid, dataclasses.replace(SETTINGS, op=[op]))
        assert [case.regime.name for case in cases] == ["decode", "batch", "prefill"]
        for case in cases:
            work = case.make()
            first, *others = (plain(work.call(ops, 0)) for ops in all_opsets())
            for other in others:
                assert np.allclose(first, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("op", CASES)
def test_all_opsets_compute_the_same_from_a_cases_inputs(pico: BenchModel, op: str) -> None:
    for case in op_cases(pico, dataclasses.replace(SETTINGS, op=[op])):
        work = case.make()
        # 3 is the number of the call, which selects a layer of the model.
        first, *others = (plain(work.call(ops, 3)) for ops in all_opsets())
        assert np.isfinite(first).all()
        for other in others:
            assert np.abs(first - other).max() <= 1e-4 * np.abs(first).max() + 1e-6


def cost_of(model: BenchModel, op: str, operand: str, regime: str) -> tuple[int, int]:
    """Return the bytes and the FLOP of a call."""
    (case,) = (
        case
        for case in op_cases(model, SETTINGS)
        if (case.op, case.operand, case.regime.name) == (op, operand, regime)
    )
    cost = case.make().cost
    return cost.bytes, cost.flops


# The matrices of pico have 4-bit codes, and each group of 64 codes has a float32 scale and bias. So
# a number takes 4 + 2 * 32 / 64 = 5 bits. All other tensors are float32.
@pytest.mark.parametrize(
    ("op", "operand", "regime", "expected"),
    [
        (
            "linear",
            "down_proj 256x768",
            "decode",
            (768 * 4 + 256 * 768 * 5 // 8 + 256 * 4, 2 * 256 * 768),
        ),
        (
            "linear",
            "down_proj 256x768",
            "prefill",
            (4 * 768 * 4 + 256 * 768 * 5 // 8 + 4 * 256 * 4, 4 * 2 * 256 * 768),
        ),
        ("embedding", "2048x256", "batch", (2 * (256 * 5 // 8 + 256 * 4 + 4), 0)),
        (
            # Two tokens choose two experts each. The call reads four of the eight experts, and
            # an id and a row of x for each choice.
            "expert_linear",
            "2 of 8x192x256",
            "batch",
            (4 * 4 + 4 * 256 * 4 + 4 * 192 * 256 * 5 // 8 + 4 * 192 * 4, 4 * 2 * 192 * 256),
        ),
        ("softmax", "4x4x4", "prefill", (2 * 4 * 4 * 4 * 4, 0)),
        ("swiglu", "768", "decode", (3 * 768 * 4, 0)),
        ("rms_norm", "256", "decode", (2 * 256 * 4 + 256 * 4, 0)),
        ("rope", "4x64", "batch", (2 * 2 * 4 * 64 * 4, 0)),
        (
            "attention",
            "4/2 heads of 64, 7 keys",
            "decode",
            (2 * 4 * 64 * 4 + 2 * 2 * 7 * 64 * 4, 4 * 4 * 64 * 7),
        ),
        (
            "attention",
            "4/2 heads of 64, 4 keys",
            "prefill",
            (2 * 4 * 4 * 64 * 4 + 2 * 2 * 4 * 64 * 4, 4 * 4 * 64 * (1 + 2 + 3 + 4)),
        ),
        ("quantize", "2x64, 4-bit", "decode", (2 * 64 * 4 + 2 * 64 * 5 // 8, 0)),
    ],
)
def test_what_a_call_costs_by_hand(
    pico: BenchModel, op: str, operand: str, regime: str, expected: tuple[int, int]
) -> None:
    assert cost_of(pico, op, operand, regime) == expected


def test_calls_go_through_the_layers(pico: BenchModel) -> None:
    (case,) = (case for case in linear(pico) if case.operand.startswith("gate_proj"))
    work = case.make()
    ops = all_opsets()[0]
    first, second, again = (plain(work.call(ops, i)) for i in (0, 1, 6))  # pico has six layers
    assert not np.array_equal(first, second)
    assert np.array_equal(first, again)


def linear(model: BenchModel) -> list[OpCase]:
    decode = regimes_of(SETTINGS)[:1]  # decode is the first regime
    return CASES["linear"](model, decode)


def test_projections_of_one_shape_are_timed_once(pico: BenchModel) -> None:
    assert [case.operand for case in linear(pico)] == [
        "q_proj 256x256",
        "k_proj 128x256",
        "gate_proj 768x256",
        "down_proj 256x768",
        "lm_head 2048x256",
    ]


def test_projections_of_every_kind_of_layer_are_timed(hybrid: BenchModel) -> None:
    timed = {str(case.operand).split()[1] for case in linear(hybrid)}
    matrices = [w.shape for name, w in hybrid.weights.items() if name.startswith("layers.")]
    assert timed >= {f"{shape[0]}x{shape[1]}" for shape in matrices if len(shape) == 2}


def test_the_experts_are_the_models_own_where_it_has_some(pico: BenchModel) -> None:
    settings = dataclasses.replace(SETTINGS, op=["expert_linear", "linear"])
    hf = dict(pico.hf) | {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 1,
        "num_experts": 4,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    config = QwenConfig.from_hf(hf)
    model = BenchModel("moe", hf, config, random_weights(config, pico.format), pico.format)
    operands = {case.operand for case in op_cases(model, settings)}
    assert "3 of 4x64x256" in operands
    for case in op_cases(model, settings):
        work = case.make()
        first, *others = (plain(work.call(ops, 0)) for ops in all_opsets())
        assert all(np.allclose(first, other, atol=1e-5) for other in others)


def test_a_comparison_has_a_row_for_each_opset(pico: BenchModel) -> None:
    results: list[Result] = []
    op_comparison(linear(pico)[0], all_opsets(), 1e-4).run(results, [])
    assert [row.by for row in results] == [ops.name for ops in all_opsets()]
    assert results[0].relative == 1.0
    ratio = results[0].samples.median / results[1].samples.median
    assert results[1].relative == pytest.approx(ratio)


def test_opsets_are_chosen_by_name() -> None:
    assert [ops.name for ops in choose_opsets(["mlx"])] == ["mlx"]
    assert choose_opsets([]) == all_opsets()


def test_an_opset_that_is_not_on_this_machine_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    with pytest.raises(UsageError, match="--ops metal: MLX finds no Metal device"):
        choose_opsets(["mlx", "metal"])
