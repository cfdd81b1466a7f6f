"""Fusions of an OpSet. A fusion is dropped if an op that the fusion stands for is replaced."""

import subprocess
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tinyllm_ops import MLX, REFERENCE, Fusion, OpSet, norm_rope, rms_norm, rope, silu, swiglu


def fused(x: mx.array, weight: mx.array | None, eps: float, *rest: Any) -> mx.array:
    """Return the result of `norm_rope`, plus 100."""
    y = x if weight is None else rms_norm(x, weight, eps)
    return rope(y, *rest).swapaxes(1, 2) + 100


def own_rope(x: mx.array, *rest: Any) -> mx.array:
    return x


def own_norm(x: mx.array, weight: mx.array, eps: float = 1e-5) -> mx.array:
    return x


def own_swiglu(gate: mx.array, up: mx.array) -> mx.array:
    return swiglu(gate, up)


OPS = replace(REFERENCE, name="mine", norm_rope=Fusion(fused, of=("rms_norm", "rope")))  # type: ignore[arg-type]
X = mx.ones((1, 2, 3, 4))


def runs_fusion(ops: OpSet) -> bool:
    return bool((norm_rope(ops, X, mx.ones(4), 1e-6) > 90).all().item())


@pytest.fixture
def recorded() -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope": own_rope}, "rope"),
        ({"rms_norm": own_norm}, "rms_norm"),
        ({"rope": own_rope, "rms_norm": own_norm}, "rms_norm, rope"),
        ({"rope": MLX.rope}, "rope"),
    ],
    ids=["rope", "rms_norm", "both", "a known rope"],
)
def test_a_fusion_of_a_replaced_op_is_dropped_with_one_warning(
    recorded: list[warnings.WarningMessage], changes: dict[str, Any], named: str
) -> None:
    assert runs_fusion(OPS)
    ops = replace(OPS, **changes)
    assert ops.norm_rope is None
    assert not runs_fusion(ops)
    assert [str(warning.message) for warning in recorded] == [
        f"mine: {named} replaced, so norm_rope of this OpSet is not used: the ops run one by one, "
        "more slowly"
    ]
    assert runs_fusion(OPS)


def test_a_dropped_fusion_warns_once_and_stays_dropped(
    recorded: list[warnings.WarningMessage],
) -> None:
    ops = replace(OPS, rope=own_rope)  # type: ignore[arg-type]
    again = replace(ops, name="again", rms_norm=own_norm)
    back = replace(again, rope=OPS.rope, rms_norm=OPS.rms_norm)
    assert len(recorded) == 1
    assert back.norm_rope is None


@pytest.mark.parametrize(
    "changes",
    [{}, {"name": "other"}, {"swiglu": own_swiglu}, {"rope": OPS.rope}],
    ids=["nothing", "name", "swiglu", "the same rope"],
)
def test_a_fusion_stays_when_its_ops_do(
    recorded: list[warnings.WarningMessage], changes: dict[str, Any]
) -> None:
    ops = replace(OPS, **changes)
    assert runs_fusion(ops)
    assert recorded == []


def test_a_new_fusion_is_bound_to_the_ops_that_it_comes_with(
    recorded: list[warnings.WarningMessage],
) -> None:
    ops = replace(OPS, rope=own_rope, norm_rope=Fusion(fused, of=("rms_norm", "rope")))  # type: ignore[arg-type]
    assert ops.norm_rope is not None
    assert ops.norm_rope.bound == (REFERENCE.rms_norm, own_rope)
    assert runs_fusion(ops)
    assert recorded == []
    assert replace(ops, rope=REFERENCE.rope).norm_rope is None
    assert len(recorded) == 1


def test_one_fusion_may_be_used_by_two_opsets() -> None:
    fusion: Fusion[Any] = Fusion(fused, of=("rms_norm", "rope"))
    for ops in (replace(REFERENCE, norm_rope=fusion), replace(MLX, norm_rope=fusion)):
        assert ops.norm_rope is not None
        assert ops.norm_rope.bound == (ops.rms_norm, ops.rope)
    assert fusion.bound is None


@dataclass(frozen=True)
class Wider(OpSet):
    """An OpSet with more fusions. Some stand for a fusion in an earlier or later field."""

    ahead: Fusion[Any] | None = None
    first: Fusion[Any] | None = None
    second: Fusion[Any] | None = None


WIDER = Wider(
    **vars(OPS) | {"name": "wider"},
    ahead=Fusion(silu, of=("first",)),
    first=Fusion(silu, of=("norm_rope", "linear")),
    second=Fusion(silu, of=("rope",)),
)


def test_a_fusion_of_a_dropped_fusion_is_dropped_with_it(
    recorded: list[warnings.WarningMessage],
) -> None:
    kept = replace(WIDER, swiglu=own_swiglu)
    assert (kept.ahead, kept.first, kept.second) == (WIDER.ahead, WIDER.first, WIDER.second)
    assert recorded == []
    ops = replace(WIDER, rms_norm=own_norm)
    assert (ops.norm_rope, ops.first, ops.ahead) == (None, None, None)
    assert ops.second is WIDER.second
    assert [str(warning.message).split(" of this")[0] for warning in recorded] == [
        "wider: rms_norm replaced, so norm_rope, first, ahead"
    ]


def test_a_replaced_fusion_drops_only_the_fusions_that_stand_for_it(
    recorded: list[warnings.WarningMessage],
) -> None:
    ops = replace(WIDER, norm_rope=Fusion(own_norm, of=("rms_norm", "rope")))  # type: ignore[arg-type]
    assert ops.norm_rope is not None
    assert (ops.ahead, ops.first, ops.second) == (None, None, WIDER.second)
    assert [str(warning.message).split(" of this")[0] for warning in recorded] == [
        "wider: norm_rope replaced, so first, ahead"
    ]


def test_the_warning_points_to_the_line_that_replaces_the_op(tmp_path: Path) -> None:
    """Run in a process of its own, because run-time type checks under pytest add frames."""
    script = tmp_path / "own.py"
    script.write_text(
        "from dataclasses import replace\n"
        "from tinyllm_ops import REFERENCE, Fusion, silu\n"
        "ops = replace(REFERENCE, norm_rope=Fusion(silu, of=('rope',)))\n"
        "ops = replace(ops, rope=silu)\n"
    )
    ran = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True
    ).stderr
    assert f"{script}:4: UserWarning: reference: rope replaced" in ran


def test_a_fusion_of_an_unknown_op_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"mine.norm_rope: expected a fusion of ops of this OpSet, got rms, rotate"
    ):
        replace(OPS, norm_rope=Fusion(fused, of=("rms", "rope", "rotate")))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["causal_conv", "gated_delta", "gated_rms_norm"])
def test_a_fusion_of_a_recurrent_op_is_dropped_if_the_op_is_replaced(
    recorded: list[warnings.WarningMessage], name: str
) -> None:
    fusion = Fusion(fused, of=("rms_norm", "causal_conv", "gated_delta", "gated_rms_norm"))
    ops = replace(REFERENCE, name="mine", norm_rope=fusion)  # type: ignore[arg-type]
    own = replace(ops, **{name: lambda *args: args})  # type: ignore[arg-type]
    assert (ops.norm_rope is None, own.norm_rope) == (False, None)
    assert [str(warning.message).split(",")[0] for warning in recorded] == [
        f"mine: {name} replaced"
    ]
