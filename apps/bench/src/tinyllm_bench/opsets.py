"""The OpSets there are: the one list that a new backend joins."""

from collections.abc import Sequence

from tinyllm_kernels import available, opset
from tinyllm_ops import OpSet

from tinyllm_bench.errors import UsageError


def all_opsets() -> tuple[OpSet, ...]:
    """Every OpSet of this installation, the reference first: speeds are relative to it."""
    present = [backend.name for backend in available() if backend.present]
    return tuple(opset(name) for name in reversed(present))


def choose_opsets(names: Sequence[str]) -> tuple[OpSet, ...]:
    """The OpSets of the given names, in the order of `all_opsets`; all of them without names.

    Raises:
        UsageError: if there is none of a name, or it is not on this machine.
    """
    known = {ops.name: ops for ops in all_opsets()}
    absent = {backend.name: backend.detail for backend in available() if not backend.present}
    for name in names:
        if name in absent:
            raise UsageError(f"--ops {name}: {absent[name]}")
        if name not in known:
            raise UsageError(f"--ops: expected one of {', '.join(known)}, got {name}")
    return tuple(ops for name, ops in known.items() if not names or name in names)
