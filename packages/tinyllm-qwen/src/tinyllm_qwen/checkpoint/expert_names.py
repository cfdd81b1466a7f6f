"""Conversion of the names of experts' tensors to MLX's names.

Qwen publishes one tensor per expert, `mlp.experts.7.gate_proj.weight`. transformers 5 can store all
experts in two tensors, `mlp.experts.gate_up_proj` and `mlp.experts.down_proj`. MLX stacks all
experts in three tensors, such as `mlp.switch_mlp.gate_proj.weight`.
"""

import re

_ONE = re.compile(
    r"(?P<mlp>(?:mtp\.)?layers\.\d{1,4}\.mlp)\.experts\.(?P<expert>0|[1-9]\d{0,4})"
    r"\.(?P<rest>(?:gate|up|down)_proj\.(?:weight|scales|biases))"
)
_FUSED = re.compile(
    r"(?P<mlp>(?:mtp\.)?layers\.\d{1,4}\.mlp)\.experts\.(?P<which>gate_up|down)_proj"
)


def expert_of(name: str) -> tuple[str, int | None]:
    """Return the name of the stacked tensor for an expert's tensor, and the number of the expert.

    A name that is not of a single expert is returned unchanged, with the number None.
    """
    match = _ONE.fullmatch(name)
    if match is None:
        return name, None
    return f"{match['mlp']}.switch_mlp.{match['rest']}", int(match["expert"])


def fused_of(name: str) -> list[str]:
    """Return the names of the tensors that `name` holds: two if gate and up are fused, else one."""
    match = _FUSED.fullmatch(name)
    if match is None:
        return [name]
    parts = ("gate", "up") if match["which"] == "gate_up" else ("down",)
    return [f"{match['mlp']}.switch_mlp.{part}_proj.weight" for part in parts]
