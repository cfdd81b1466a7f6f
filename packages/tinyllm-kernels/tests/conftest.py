"""Every kernel, in every instruction set of this machine, in every dtype, against float64."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import mlx.core as mx
import pytest
from hypothesis import settings
from tinyllm_kernels import available, opset
from tinyllm_ops import OpSet
from tinyllm_ops.testing import TOLERANCE

settings.register_profile("repeatable", max_examples=10, derandomize=True, deadline=None)
settings.load_profile("repeatable")

PRESENT = available()[0].present
TIERS = importlib.import_module("tinyllm_kernels._cpu").tiers() if PRESENT else ["absent"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the fastest instruction set and the plainest one where the whole workspace is tested.

    Those between are for a run of this package, `pytest packages/tinyllm-kernels`.
    """
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        return
    between = [item for item in items if _tier(item) in TIERS[1:-1]]
    config.hook.pytest_deselected(items=between)
    items[:] = [item for item in items if _tier(item) not in TIERS[1:-1]]


def _tier(item: pytest.Item) -> str | None:
    """The instruction set that a test of this package asks for, if it does."""
    if not item.path.is_relative_to(Path(__file__).parent) or not isinstance(item, pytest.Function):
        return None
    callspec = getattr(item, "callspec", None)
    tier = None if callspec is None else callspec.params.get("ops")
    return tier if isinstance(tier, str) else None


@pytest.fixture(params=TIERS)
def ops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> OpSet:
    """The native OpSet, with the kernels of one instruction set."""
    if not PRESENT:  # an install without a compiler is supported
        pytest.skip(available()[0].detail)
    monkeypatch.setenv("TINYLLM_CPU_ISA", request.param)
    return opset("cpu")


@pytest.fixture(params=TOLERANCE, ids=lambda dtype: str(dtype).removeprefix("mlx.core."))
def dtype(request: pytest.FixtureRequest) -> mx.Dtype:
    """Each dtype that the contract names."""
    chosen: mx.Dtype = request.param
    return chosen


@pytest.fixture
def unchecked() -> Iterator[None]:
    """See what a user sees: under pytest the signatures' own run-time check would speak first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
