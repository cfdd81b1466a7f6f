"""Fusions: one function in place of several ops, as long as these ops are the original ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Generic, TypeVar

F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True, eq=False)
class Fusion(Generic[F]):
    """A function that computes what several ops of an `OpSet` compute one after the other.

    An OpSet binds its fusions to its ops when it is made. `dataclasses.replace(ops, rope=mine)`
    makes an OpSet with another `rope`; each fusion that stands for `rope` is dropped there, so that
    the replaced op runs.

    Attributes:
        function: the fused function.
        of: names of the ops that the function stands for.
        bound: these ops, once an OpSet has bound the fusion.
    """

    function: F
    of: tuple[str, ...]
    bound: tuple[object, ...] | None = None


def bind_fusions(opset: object, name: str) -> None:
    """Bind new fusions among the fields of a frozen `opset`, and drop those of replaced ops.

    A dropped fusion becomes None. One warning names all ops that were replaced and the fusions
    that are not used because of them.

    Args:
        opset: a frozen dataclass whose fields are ops and fusions.
        name: of the opset, for the warning.
    """
    dropped: dict[str, list[str]] = {}
    for field in fields(opset):  # type: ignore[arg-type] # every caller is a dataclass
        fusion = getattr(opset, field.name)
        if not isinstance(fusion, Fusion):
            continue
        ops = tuple(getattr(opset, op) for op in fusion.of)
        if fusion.bound is None:
            object.__setattr__(opset, field.name, replace(fusion, bound=ops))
            continue
        replaced = [
            op for op, old, new in zip(fusion.of, fusion.bound, ops, strict=True) if old is not new
        ]
        if replaced:
            object.__setattr__(opset, field.name, None)
            dropped[field.name] = replaced
    if dropped:
        ops_named = ", ".join(sorted({op for replaced in dropped.values() for op in replaced}))
        warnings.warn(
            f"{name}: {ops_named} replaced, so {', '.join(dropped)} of this OpSet is not used: "
            "the ops run one by one, more slowly",
            stacklevel=5,  # the caller of `dataclasses.replace`
        )
