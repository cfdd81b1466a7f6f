"""The names that experts' tensors go by, brought to those of MLX.

Qwen publishes `mlp.experts.7.gate_proj.weight`, one tensor an expert; transformers 5 can store
`mlp.experts.gate_up_proj` and `mlp.experts.down_proj`, all experts in one; MLX stores
`mlp.switch_mlp.gate_proj.weight`, all experts in one, gate and up apart.
"""

import re

_ONE = re.compile(
    r"(?P<mlp>layers\.\d{1,4}\.mlp)\.experts\.(?P<expert>0|[1-9]\d{0,4})"
    r"\.(?P<rest>(?:gate|up|down)_proj\.(?:weight|scales|biases))"
)
_FUSED = re.compile(r"(?P<mlp>layers\.\d{1,4}\.mlp)\.experts\.(?P<which>gate_up|down)_proj")


def expert_of(name: str) -> tuple[str, int | None]:
    """Name the stacked tensor that one expert's tensor is part of, and the expert's number.

    Any other name is its own, with no number.
    """
    match = _ONE.fullmatch(name)
    if match is None:
        return name, None
    return f"{match['mlp']}.switch_mlp.{match['rest']}", int(match["expert"])


def fused_of(name: str) -> list[str]:
    """Name the stacked tensors that `name` holds: two for gate and up in one, otherwise one."""
    match = _FUSED.fullmatch(name)
    if match is None:
        return [name]
    parts = ("gate", "up") if match["which"] == "gate_up" else ("down",)
    return [f"{match['mlp']}.switch_mlp.{part}_proj.weight" for part in parts]
