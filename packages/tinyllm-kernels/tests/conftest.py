"""Fixtures: every instruction set of this machine, and every dtype."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import jaxtyping
import mlx.core as mx
import pytest
from hypothesis import settings
from metalhost import SWEEP
from tinyllm_kernels import available, opset
from tinyllm_layers import Backend
from tinyllm_ops.testing import TOLERANCE

settings.register_profile("repeatable", max_examples=10, derandomize=True, deadline=None)
settings.load_profile("repeatable")

PRESENT = available()[0].present
FIRST = (SWEEP[0], None)  # None is the GPU of a Mac
TIERS = importlib.import_module("tinyllm_kernels._cpu").tiers() if PRESENT else ["absent"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests between the fastest and the plainest instruction set as exhaustive.

    The same holds for all ways but the first in which metalhost runs a Metal kernel.
    """
    for item in items:
        is_ours = item.path.is_relative_to(Path(__file__).parent)
        if is_ours and isinstance(item, pytest.Function) and _is_between(item):
            item.add_marker(pytest.mark.exhaustive)


def _is_between(item: pytest.Function) -> bool:
    """Return True for a middle instruction set, and for a later way to run a Metal kernel."""
    asked = item.callspec.params if hasattr(item, "callspec") else {}
    return asked.get("ops") in TIERS[1:-1] or asked.get("metal_sweep", SWEEP[0]) not in FIRST


@pytest.fixture(params=TIERS)
def ops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """The native backend, with the kernels of one instruction set."""
    if not PRESENT:  # an install without a compiler is supported
        pytest.skip(available()[0].detail)
    monkeypatch.setenv("TINYLLM_CPU_ISA", request.param)
    backend = opset("cpu")
    assert isinstance(backend, Backend)
    return backend


@pytest.fixture
def native(ops: Backend) -> ModuleType:
    """The extension, with the kernels of one instruction set."""
    return importlib.import_module("tinyllm_kernels._cpu")


@pytest.fixture(params=TOLERANCE, ids=lambda dtype: str(dtype).removeprefix("mlx.core."))
def dtype(request: pytest.FixtureRequest) -> mx.Dtype:
    """Run a test with each dtype of the contract."""
    chosen: mx.Dtype = request.param
    return chosen


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Turn off the run-time check of signatures, which users do not have."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
