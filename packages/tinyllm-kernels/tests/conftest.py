"""Fixtures: the instruction sets of this machine, and every dtype.

The plainest and the fastest instruction set run every case of a test, and so do Metal's kernels.
The instruction sets between them run a sample with every pair of parameter values.
TINYLLM_TEST_ISAS=all runs every case with every instruction set. A short run, which leaves out
exhaustive tests, has a sample of all cases, and no instruction sets in the middle.
"""

import contextlib
import importlib
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings
from metalhost import SWEEP
from tinyllm_kernels import available, opset
from tinyllm_layers import Backend
from tinyllm_ops.testing import without_checks
from tinyllm_ops.testing.fixtures import dtype, unchecked
from tinyllm_ops.testing.pairs import without_new_pair

__all__ = ["dtype", "native", "ops", "unchecked"]

settings.register_profile("repeatable", max_examples=10, derandomize=True, deadline=None)
settings.load_profile("repeatable")

PRESENT = available()[0].present
FIRST = (SWEEP[0], None)  # None is the GPU of a Mac
INSTRUCTION_SETS = (
    importlib.import_module("tinyllm_kernels._cpu").instruction_sets() if PRESENT else ["absent"]
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a sample of the middle instruction sets lacks, and mark exhaustive cases.

    These are cases of the middle instruction sets, cases with metalhost settings other than the
    first of the sweep, and cases that add no pair of parameter values to a sample. Each instruction
    set has a sample of its own, with every pair.
    """
    middle = INSTRUCTION_SETS[1:-1]
    cases: dict[tuple[str, object], list[pytest.Function]] = defaultdict(list)
    for item in items:
        is_ours = item.path.is_relative_to(Path(__file__).parent)
        if not is_ours or not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        params: dict[str, Any] = item.callspec.params
        isa, sweep = params.get("ops"), params.get("metal_sweep")
        cases[item.nodeid.partition("[")[0], repr(isa or sweep)].append(item)
        if isa in middle or sweep not in (None, *FIRST):
            item.add_marker(pytest.mark.exhaustive)
    redundant = [item for found in cases.values() for item in without_new_pair(found)]
    for item in redundant:
        item.add_marker(pytest.mark.exhaustive)
    if os.environ.get("TINYLLM_TEST_ISAS") == "all":
        return
    deselected = {item for item in redundant if item.callspec.params.get("ops") in middle}
    config.hook.pytest_deselected(items=list(deselected))
    items[:] = [item for item in items if item not in deselected]


@pytest.fixture(params=INSTRUCTION_SETS)
def ops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    """The native backend, with the kernels of one instruction set.

    The run-time check of signatures is on for the fastest instruction set alone. The check costs a
    third of the time of a small test, and finds the same errors with every instruction set.
    """
    if not PRESENT:  # an install without a compiler is supported
        pytest.skip(available()[0].detail)
    monkeypatch.setenv("TINYLLM_CPU_ISA", request.param)
    backend = opset("cpu")
    assert isinstance(backend, Backend)
    with contextlib.nullcontext() if request.param == INSTRUCTION_SETS[0] else without_checks():
        yield backend


@pytest.fixture
def native(ops: Backend) -> ModuleType:
    """The extension, with the kernels of one instruction set."""
    return importlib.import_module("tinyllm_kernels._cpu")
