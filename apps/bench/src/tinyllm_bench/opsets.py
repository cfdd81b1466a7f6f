"""OpSets that this installation can measure."""

from collections.abc import Sequence

from tinyllm_cli.messages import UsageError
from tinyllm_kernels import available, opset
from tinyllm_layers import Backend
from tinyllm_layers.backend import keep_as_loaded
from tinyllm_ops import OpSet


def all_opsets() -> tuple[OpSet, ...]:
    """Return every OpSet of this installation whose results are as exact as their dtype.

    Speeds are relative to the first, the reference.
    """
    return tuple(
        opset(backend.name)
        for backend in reversed(available())
        if backend.present and not backend.rounds_more
    )


def choose_opsets(names: Sequence[str]) -> tuple[OpSet, ...]:
    """Return the OpSets with these names in the order of `all_opsets`; all of them without names.

    Raise `UsageError` if a name is unknown, or its OpSet cannot run on this machine.
    """
    if not names:
        return all_opsets()
    backends = {backend.name: backend for backend in reversed(available())}
    for name in names:
        if name not in backends:
            known = [backend.name for backend in backends.values() if backend.present]
            raise UsageError(f"--ops: expected one of {', '.join(known)}, got {name}")
        if not backends[name].present:
            raise UsageError(f"--ops {name}: {backends[name].detail}")
    return tuple(opset(name) for name in backends if name in names)


def has_own_layout(ops: OpSet) -> bool:
    """Return True if the OpSet changes the layout of weights in memory."""
    return isinstance(ops, Backend) and ops.prepare is not keep_as_loaded
