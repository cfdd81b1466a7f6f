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
    makes an OpSet with another `rope`. Each fusion that stands for `rope` is dropped there, so that
    the replaced op runs.

    Attributes:
        function: the fused function.
        of: names of the ops that the function stands for. A fusion may be among them.
        bound: the functions of these ops; None until an OpSet has bound the fusion.
    """

    function: F
    of: tuple[str, ...]
    bound: tuple[object, ...] | None = None


def bind_fusions(opset: object, name: str) -> None:
    """Bind new fusions among the fields of a frozen `opset`, and drop fusions of replaced ops.

    A dropped fusion becomes None. One warning names all ops that were replaced and all fusions
    that were dropped because of them.

    Args:
        opset: a frozen dataclass whose fields are ops and fusions.
        name: name of the opset, for messages.

    Raises:
        ValueError: if a fusion stands for an op that the opset does not have.
    """
    ops = {field.name: getattr(opset, field.name) for field in fields(opset)}  # type: ignore[arg-type] # every caller is a dataclass
    fusions = {field: op for field, op in ops.items() if isinstance(op, Fusion)}
    # A fusion counts as its function: `replace` below makes new Fusion objects.
    functions = {field: op.function if isinstance(op, Fusion) else op for field, op in ops.items()}
    replaced: set[str] = set()
    dropped: list[str] = []
    for field, fusion in fusions.items():
        unknown = sorted(set(fusion.of) - ops.keys())
        if unknown:
            raise ValueError(
                f"{name}.{field}: expected a fusion of ops of this OpSet, got {', '.join(unknown)}"
            )
        now = tuple(functions[op] for op in fusion.of)
        if fusion.bound is None:
            object.__setattr__(opset, field, replace(fusion, bound=now))
            continue
        changed = [
            op for op, old, new in zip(fusion.of, fusion.bound, now, strict=True) if old is not new
        ]
        if changed:
            object.__setattr__(opset, field, None)
            functions[field] = None
            replaced.update(op for op in changed if op not in dropped)
            dropped.append(field)
    if dropped:
        warnings.warn(
            f"{name}: {', '.join(sorted(replaced))} replaced, so {', '.join(dropped)} of this "
            "OpSet is not used: the ops run one by one, more slowly",
            stacklevel=5,  # the caller of `dataclasses.replace`
        )
