"""Separation of the output gates of attention from the queries.

Checkpoints with output gates store queries and gates in one projection. For each head, the rows of
the queries come first, and the rows of the gates follow. The model needs two projections.
"""

from collections.abc import MutableMapping

import mlx.core as mx
from tinyllm_ops import Weight
from tinyllm_ops.quantization.tensor import arrays_of, map_arrays

from tinyllm_qwen.config.qwen import QwenConfig

_QUERIES, _GATES = ".self_attn.q_proj.", ".self_attn.g_proj."


def split_output_gates(weights: MutableMapping[str, Weight], config: QwenConfig) -> None:
    """Replace each `q_proj` by `q_proj` with the queries and `g_proj` with the gates, in place.

    The tensors are copied one after the other, so that memory holds at most one of them twice.
    Models without output gates are unchanged.

    Args:
        weights: the tensors by name, of all heads or of some of them.
        config: the architecture.
    """
    if not config.output_gate:
        return
    for name in [name for name in weights if _QUERIES in name]:
        joined = weights.pop(name)
        for part, new in enumerate((name, name.replace(_QUERIES, _GATES))):
            weights[new] = _rows(joined, part, config.head_dim)
        del joined
        mx.eval([arrays_of(weights[new]) for new in (name, name.replace(_QUERIES, _GATES))])


def _rows(joined: Weight, part: int, head_dim: int) -> Weight:
    """Return the queries (part 0) or the gates (part 1) of all heads."""

    def select(x: mx.array) -> mx.array:
        heads = x.reshape(-1, 2, head_dim, *x.shape[1:])
        return mx.contiguous(heads[:, part].flatten(0, 1))

    return map_arrays(select, joined)
