"""Expert weights are read from every layout of checkpoint files, and errors name the expert."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from tinyllm_ops import MLX, REFERENCE, QuantizedTensor
from tinyllm_qwen.checkpoint.weights import load_part, load_weights
from tinyllm_qwen.errors import CheckpointError
from tinyllm_qwen.model import Qwen

MakeCheckpoint = Callable[..., Any]
Layout = Callable[..., Any]
STACKS = [f"layers.{n}.mlp.switch_mlp.{p}_proj" for n in range(2) for p in ("gate", "up", "down")]


def apart(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Split each stack into one tensor per expert, the layout that Qwen publishes."""
    result: dict[str, mx.array] = {}
    for name, tensor in tensors.items():
        if ".switch_mlp." not in name:
            result[name] = tensor
            continue
        for expert, part in enumerate(tensor):
            result[name.replace("switch_mlp", f"experts.{expert}")] = part
    return result


def fused(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Concatenate the gate and up projections of all experts, as transformers 5 stores them."""
    result = {name: t for name, t in tensors.items() if ".switch_mlp." not in name}
    for layer in range(2):
        stacks, target = (f"layers.{layer}.mlp.{name}" for name in ("switch_mlp", "experts"))
        both = [tensors[f"{stacks}.{name}_proj.weight"] for name in ("gate", "up")]
        result[f"{target}.gate_up_proj"] = mx.concatenate(both, axis=1)
        result[f"{target}.down_proj"] = tensors[f"{stacks}.down_proj.weight"]
    return result


def transposed(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Fuse gate and up, and transpose each expert, as Qwen publishes Qwen3-VL-MoE."""
    return {
        name: mx.contiguous(tensor.swapaxes(1, 2)) if ".experts." in name else tensor
        for name, tensor in fused(tensors).items()
    }


@pytest.mark.parametrize("layout", [dict, apart, fused])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", [None, mx.float32])
def test_every_layout_gives_the_same_stacks(
    random_checkpoint: MakeCheckpoint, layout: Layout, shards: int, dtype: mx.Dtype | None
) -> None:
    made = random_checkpoint("qwen3_moe").fill()
    expected = made.tensors
    made.tensors = layout(made.tensors)
    made.save(shards=shards)
    weights = load_weights(made.folder, made.config, dtype=dtype)
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        assert weights[name].dtype == (dtype or mx.bfloat16)
        assert mx.array_equal(weights[name], tensor)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", [dict, apart, fused, transposed])
def test_layouts_of_qwen3_vl_give_the_same_stacks(
    random_checkpoint: MakeCheckpoint, layout: Layout
) -> None:
    made = random_checkpoint("qwen3_moe", model_type="qwen3_vl_moe", moe_intermediate_size=24)
    expected = made.fill().tensors
    made.tensors = layout(made.tensors)
    made.save(prefix="model.language_model.")
    weights = load_weights(made.folder, made.config)
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        assert mx.array_equal(weights[name], tensor), name  # type: ignore[arg-type]
    for rank, experts in enumerate((slice(2), slice(2, 4))):
        part, _ = load_part(made.folder, made.config, rank, 2)
        for name in (f"{path}.weight" for path in STACKS):
            assert mx.array_equal(part[name], expected[name][experts]), name  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", [dict, apart])
@pytest.mark.parametrize(
    ("mode", "bits", "group"), [("affine", 4, 32), ("mxfp4", 4, 32), ("nvfp4", 4, 16)]
)
def test_packed_experts_stay_packed(
    random_checkpoint: MakeCheckpoint, layout: Layout, mode: str, bits: int, group: int
) -> None:
    table = {"group_size": group, "bits": bits, "mode": mode}
    router = {"model.layers.0.mlp.gate": {"group_size": 32, "bits": 8}}
    made = random_checkpoint("qwen3_moe", quantization=table | router).fill()
    made.quantize(STACKS, group, bits, mode).quantize(["layers.0.mlp.gate"], 32, 8)
    expected = made.tensors
    made.tensors = layout(made.tensors)
    weights = load_weights(made.save().folder, made.config)
    for path in STACKS:
        stack = weights[f"{path}.weight"]
        assert isinstance(stack, QuantizedTensor)
        assert (stack.mode, stack.bits, stack.group_size) == (mode, bits, group)
        assert mx.array_equal(stack.packed, expected[f"{path}.weight"])
        assert mx.array_equal(stack.scales, expected[f"{path}.scales"])
    assert weights["layers.0.mlp.gate.weight"].bits == 8
    assert isinstance(weights["layers.1.mlp.gate.weight"], mx.array)
    for ops in (REFERENCE, MLX):
        logits = Qwen(made.config, weights, ops=ops)(mx.array([[1, 2, 3]]))
        assert mx.isfinite(logits).all().item()


def test_layers_with_an_mlp_stand_between_layers_with_experts(
    random_checkpoint: MakeCheckpoint,
) -> None:
    made = random_checkpoint("qwen3_moe", mlp_only_layers=[0]).fill().save()
    weights = load_weights(made.folder, made.config)
    assert weights["layers.0.mlp.gate_proj.weight"].shape == (128, 64)
    assert weights["layers.1.mlp.switch_mlp.gate_proj.weight"].shape == (4, 32, 64)


@pytest.mark.parametrize(
    ("drop", "message"),
    [
        ("layers.1.mlp.experts.2.up_proj.weight", r"switch_mlp.up_proj.*experts \[2\] are missing"),
        ("layers.1.mlp.experts.3.up_proj.weight", r"expected F32/F16/BF16 \(4, 32, 64\), got BF16"),
        ("layers.1.mlp.gate.weight", r"missing \(1\):\s+layers.1.mlp.gate.weight"),
    ],
)
def test_an_expert_that_is_missing_is_named(
    random_checkpoint: MakeCheckpoint, drop: str, message: str
) -> None:
    made = random_checkpoint("qwen3_moe").fill()
    made.tensors = apart(made.tensors)
    del made.tensors[drop]
    made.save()
    with pytest.raises(CheckpointError, match=message):
        load_weights(made.folder, made.config)


def test_an_expert_of_another_shape_is_named(random_checkpoint: MakeCheckpoint) -> None:
    made = random_checkpoint("qwen3_moe").fill()
    made.tensors = apart(made.tensors)
    made.tensors["layers.0.mlp.experts.1.up_proj.weight"] = mx.zeros((31, 64), mx.bfloat16)
    made.save()
    with pytest.raises(CheckpointError, match=r"experts.1.up_proj.*expert 1 has BF16 \(31, 64\)"):
        load_weights(made.folder, made.config)


def test_experts_that_are_there_twice_are_refused(random_checkpoint: MakeCheckpoint) -> None:
    made = random_checkpoint("qwen3_moe").fill()
    made.tensors |= apart(made.tensors)
    made.save()
    with pytest.raises(CheckpointError, match="twice, stacked and expert by expert"):
        load_weights(made.folder, made.config)


def test_an_absurd_number_of_an_expert_takes_no_memory(random_checkpoint: MakeCheckpoint) -> None:
    made = random_checkpoint("qwen3_moe").fill()
    made.tensors = apart(made.tensors)
    part = made.tensors.pop("layers.0.mlp.experts.0.up_proj.weight")
    for number in ("99999", "123456789012345678901234567890"):
        made.tensors[f"layers.0.mlp.experts.{number}.up_proj.weight"] = part
    made.save()
    with pytest.raises(CheckpointError, match=r"experts \[0, 4, 5, 6, 7\] are missing"):
        load_weights(made.folder, made.config)
