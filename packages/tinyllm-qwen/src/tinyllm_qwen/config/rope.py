"""A reader of the RoPE settings in `config.json`."""

import math

from tinyllm_ops import Yarn

from tinyllm_qwen.config.fields import Fields, label, show
from tinyllm_qwen.errors import CheckpointError

_LARGEST = 1e15  # far beyond any published base or factor

_KNOWN = frozenset(
    {
        "attention_factor",
        "attn_factor",
        "beta_fast",
        "beta_slow",
        "extrapolation_factor",
        "factor",
        "max_position_embeddings",
        "mscale",
        "mscale_all_dim",
        "original_max_position_embeddings",
        "partial_rotary_factor",
        "rope_theta",
    }
)
"""The fields of a table of YaRN that hold one number."""


def read_rope_theta(fields: Fields) -> float:
    """Read `rope_theta`, at the top level (transformers 4) or in `rope_parameters` (5).

    Raises:
        CheckpointError: if both are absent, or if both are present and differ.
    """
    nested = fields.nested("rope_parameters")
    tables = [table for table in (fields, nested) if table.raw("rope_theta") is not None]
    # The field is required, because the defaults differ: 10,000 in transformers, 1,000,000 in MLX.
    values = {table.number("rope_theta", 1.0, _LARGEST) for table in tables or [fields]}
    if len(values) > 1:
        raise CheckpointError(
            f"{fields.source}: rope_theta: expected one value, got {min(values)} and {max(values)} "
            "at the top level and in rope_parameters: remove the wrong one"
        )
    return values.pop()


def read_rotary_dims(fields: Fields, head_dim: int) -> int:
    """Read `partial_rotary_factor`, and return the number of features of a head to rotate.

    The factor is at the top level or in `rope_parameters`, and 1/4 if absent. Sections of mRoPE
    (`mrope_section`, `mrope_interleaved`) assign the features to time, height and width. For text,
    all three are equal, so that the sections have no effect.

    Args:
        fields: the config.
        head_dim: the number of features of a head.

    Raises:
        CheckpointError: if the factor is out of range, or the number of features is odd or 0.
    """
    nested = fields.nested("rope_parameters")
    name = "partial_rotary_factor"
    tables = [table for table in (nested, fields) if table.raw(name) is not None]
    factor = tables[0].number(name, 0.0, 1.0) if tables else 0.25
    dims = int(head_dim * factor)
    if dims % 2 or not dims:
        table = tables[0] if tables else fields
        raise table.error(name, f"a factor that leaves an even part of head_dim ({head_dim})")
    return dims


def read_rope_scaling(
    fields: Fields, max_position_embeddings: int, *, partial: bool = False
) -> Yarn | None:
    """Read the settings of YaRN from `rope_scaling` (transformers 4) or `rope_parameters` (5).

    Args:
        fields: the config.
        max_position_embeddings: the context length of the config.
        partial: True if the model may rotate a part of each head.

    Returns:
        The settings, or None if neither table has them.

    Raises:
        CheckpointError: if a setting is out of range, the two tables differ, or a table has another
            kind of scaling.
    """
    if fields.raw("rope_type") not in (None, "default"):
        raise fields.error("rope_type", "it in rope_parameters, with the other fields of the kind")
    found = [
        _scaling(fields.nested(name), partial=partial)
        for name in ("rope_scaling", "rope_parameters")
        if fields.table(name)
    ]
    tables = [table for table in found if table is not None]
    scalings = {_yarn(table, max_position_embeddings) for table in tables}
    if len(scalings) > 1:
        raise CheckpointError(
            f"{fields.source}: rope_scaling and rope_parameters ask for two kinds of YaRN: "
            "remove one"
        )
    return scalings.pop() if scalings else None


def _scaling(table: Fields, *, partial: bool) -> Fields | None:
    """Return the table if its type is YaRN, or None if it has no scaling."""
    if not partial and table.raw("partial_rotary_factor") not in (None, 1):
        raise CheckpointError(f"{table.source}: partial rotation is not implemented yet")
    kind = table.raw("rope_type") if table.raw("rope_type") is not None else table.raw("type")
    if kind == "yarn":
        return table
    if kind not in (None, "default"):
        raise CheckpointError(
            f"{table.source}: type {show(kind)} is not implemented yet; 'default' and 'yarn' are: "
            "use another model"
        )
    for name in ("full_attention", "sliding_attention"):
        if table.raw(name) is not None:
            raise CheckpointError(
                f"{table.source}: parameters per kind of layer are not implemented yet"
            )
    return None


def _yarn(table: Fields, max_position_embeddings: int) -> Yarn:
    """Read the settings of YaRN.

    Absent betas get the values of the paper. An absent factor is `max_position_embeddings`
    divided by the original context length, but at least 1. Numbers under other names are refused,
    because they might change the result.
    """
    for name in table.numbers():
        if name not in _KNOWN:
            raise CheckpointError(
                f"{table.source}: {label(name)} is no known setting of YaRN: correct its name, or "
                "remove it if it has no effect"
            )
    if table.number("extrapolation_factor", 0.0, 1e6, default=1.0) != 1.0:
        raise table.error("extrapolation_factor", "1, since other values are not implemented")
    original = table.integer(
        "original_max_position_embeddings", 1, 1 << 31, default=max_position_embeddings
    )
    stretch = max(1.0, max_position_embeddings / original)
    factor = table.number("factor", 1.0, _LARGEST, default=stretch)
    betas = [
        table.number(name, 1e-6, 1e6, default=value)
        for name, value in (("beta_fast", 32.0), ("beta_slow", 1.0))
    ]
    if betas[1] > betas[0]:
        raise table.error("beta_slow", f"at most beta_fast ({betas[0]:g})")
    return Yarn(
        factor=factor,
        original_max_position_embeddings=original,
        beta_fast=betas[0],
        beta_slow=betas[1],
        attention_factor=_attention_factor(table, factor),
        truncate=table.flag("truncate", default=True),
    )


def _attention_factor(table: Fields, factor: float) -> float | None:
    """Return attention_factor, or the factor that follows from attn_factor, mscale and the others.

    As in transformers, mscale and mscale_all_dim are used only if both are given and not 0. As in
    vLLM, attn_factor multiplies the factor that would be used without it.
    DeepSeek-R1-0528-Qwen3-8B has one that makes the product 1; transformers 5 and mlx-lm 0.32
    ignore it.

    Returns:
        The factor, or None for the factor of the paper.
    """
    if table.raw("attention_factor") is not None:
        return table.number("attention_factor", 1e-6, 1e6)
    scales = [table.number(name, 0.0, 1e6, default=0.0) for name in ("mscale", "mscale_all_dim")]
    times = table.number("attn_factor", 1e-6, 1e6, default=1.0)
    if not all(scales):
        return None if times == 1 else times * (0.1 * math.log(factor) + 1.0)
    over, under = (0.1 * scale * math.log(factor) + 1.0 for scale in scales)
    return times * over / under
