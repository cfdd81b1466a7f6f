"""Separation of projections that checkpoints store in one matrix, head by head.

The model needs a matrix for each projection, with the rows of all heads. `r` value heads of a
recurrent layer share a key head.

| stored | rows of each head, in this order | in the model |
|---|---|---|
| `q_proj`, with output gates | D of queries, D of gates | `q_proj`, `g_proj` |
| `in_proj_qkvz` (Qwen3-Next) | Dk of q and of k, r*Dv of v and of z | `in_proj_qkv`, `in_proj_z` |
| `in_proj_ba` (Qwen3-Next) | r of b, r of a | `in_proj_b`, `in_proj_a` |
"""

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import mlx.core as mx
from tinyllm_ops import Weight
from tinyllm_ops.quantization.tensor import arrays_of, map_arrays

from tinyllm_qwen.config.qwen import QwenConfig


@dataclass(frozen=True, slots=True)
class _Joint:
    """The layout of a joint matrix, whose heads consist of the same parts.

    Attributes:
        rows: the number of rows of each part of a head.
        projections: the numbers of the parts that form each projection, by name.
    """

    rows: tuple[int, ...]
    projections: Mapping[str, tuple[int, ...]]


def split_projections(weights: MutableMapping[str, Weight], config: QwenConfig) -> None:
    """Replace each joint matrix by its projections, in place.

    The matrices are copied one after the other, so that memory holds at most one of them twice.
    Models without joint matrices are unchanged.

    Args:
        weights: the tensors by name, of all heads or of some of them.
        config: the architecture.
    """
    joints = _joints(config)
    for name in list(weights):
        path, _, kind = name.rpartition(".")  # "layers.0.linear_attn.in_proj_ba" and "weight"
        mixer, _, module = path.rpartition(".")
        joint = joints.get(module)
        if joint is None:
            continue
        matrix = weights.pop(name)
        for projection, parts in joint.projections.items():
            new = weights[f"{mixer}.{projection}.{kind}"] = _select(matrix, joint, parts)
            mx.eval(arrays_of(new))


def _joints(config: QwenConfig) -> dict[str, _Joint]:
    """Return the layout of each joint matrix of a model, by the name of its module."""
    joints: dict[str, _Joint] = {}
    if config.output_gate:
        rows = (config.head_dim, config.head_dim)
        joints["q_proj"] = _Joint(rows, {"q_proj": (0,), "g_proj": (1,)})
    recurrent = config.recurrent
    if recurrent is not None and recurrent.joint:
        key, shared = recurrent.key_dim, recurrent.values_per_key
        values = shared * recurrent.value_dim
        joints["in_proj_qkvz"] = _Joint(
            (key, key, values, values), {"in_proj_qkv": (0, 1, 2), "in_proj_z": (3,)}
        )
        joints["in_proj_ba"] = _Joint((shared, shared), {"in_proj_b": (0,), "in_proj_a": (1,)})
    return joints


def _select(matrix: Weight, joint: _Joint, parts: Sequence[int]) -> Weight:
    """Return the rows of some parts: those of all heads for the first part, then for the next."""

    def select(x: mx.array) -> mx.array:
        heads = x.reshape(-1, sum(joint.rows), *x.shape[1:])
        by_part = mx.split(heads, list(accumulate(joint.rows[:-1])), axis=1)
        return mx.contiguous(mx.concatenate([by_part[part].flatten(0, 1) for part in parts]))

    return map_arrays(select, matrix)
