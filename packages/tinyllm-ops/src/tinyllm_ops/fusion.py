"""Fusions: functions that compute several ops, and are dropped if one of the ops is replaced."""

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Generic, TypeVar

F = TypeVar("F", bound=Callable[..., object])

# Stack frames from `warnings.warn` up: bind_fusions, __post_init__, __init__, dataclasses.replace
# (two frames from Python 3.13 on), the caller of `replace`.
_CALLER_OF_REPLACE = 5 if sys.version_info < (3, 13) else 6


@dataclass(frozen=True, eq=False)
class Fusion(Generic[F]):
    """A function that computes several ops of an `OpSet` in one call.

    The constructor of an OpSet binds its fusions to its ops. `dataclasses.replace(ops, rope=mine)`
    makes an OpSet with another `rope`. The new OpSet drops each fusion that stands for `rope`, so
    that the replaced op runs.

    Attributes:
        function: the fused function.
        of: names of the ops that the function stands for. An op may itself be a fusion.
        bound: the functions of the ops in `of`; None until an OpSet has bound the fusion.
    """

    function: F
    of: tuple[str, ...]
    bound: tuple[object, ...] | None = None


def bind_fusions(opset: object, name: str) -> None:
    """Bind new fusions among the fields of a frozen `opset`, and drop fusions of replaced ops.

    The field of a dropped fusion becomes None. One warning names all replaced ops and all dropped
    fusions.

    Args:
        opset: a frozen dataclass whose fields are ops and fusions.
        name: name of the opset, for messages.

    Raises:
        ValueError: if a fusion stands for an op that the opset does not have.
    """
    ops = {field.name: getattr(opset, field.name) for field in fields(opset)}  # type: ignore[arg-type] # every caller is a dataclass
    # Fusions are compared by their functions, because binding makes a new Fusion object.
    functions = {field: op.function if isinstance(op, Fusion) else op for field, op in ops.items()}
    fusions = {field: op for field, op in ops.items() if isinstance(op, Fusion)}
    for field, fusion in fusions.items():
        unknown = [op for op in fusion.of if op not in ops]
        if unknown:
            raise ValueError(
                f"{name}.{field}: expected a fusion of ops of this OpSet, got {', '.join(unknown)}"
            )
        if fusion.bound is None:
            fusions[field] = replace(fusion, bound=tuple(functions[op] for op in fusion.of))
            object.__setattr__(opset, field, fusions[field])

    def changed(fusion: Fusion[Callable[..., object]]) -> list[str]:
        assert fusion.bound is not None
        pairs = zip(fusion.of, fusion.bound, strict=True)
        return [op for op, function in pairs if functions[op] is not function]

    replaced = {op for fusion in fusions.values() for op in changed(fusion)}
    dropped: list[str] = []
    # A fusion may stand for another fusion. Dropping the inner fusion makes the outer one stale.
    while stale := [field for field in fusions if field not in dropped and changed(fusions[field])]:
        for field in stale:
            object.__setattr__(opset, field, None)
            functions[field] = None
        dropped += stale
    if dropped:
        warnings.warn(
            f"{name}: {', '.join(sorted(replaced))} replaced, so {', '.join(dropped)} of this "
            "OpSet is not used: the ops run one by one, more slowly",
            stacklevel=_CALLER_OF_REPLACE,
        )
