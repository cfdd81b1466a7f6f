"""Fixtures that run a test with every OpSet, on every device, in every dtype."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import pytest
from hypothesis import settings
from tinyllm_ops import OpSet
from tinyllm_ops.testing import DEVICES, OPSETS, TOLERANCE, without_checks

# Draw the same few examples in every run and on every machine, so that a failure can be repeated.
settings.register_profile("repeatable", max_examples=10, derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(params=DEVICES, ids=lambda device: str(device.type).removeprefix("DeviceType."))
def device(request: pytest.FixtureRequest) -> Iterator[mx.Device]:
    """Set MLX's default device for one test, which runs once on each device."""
    before = mx.default_device()
    mx.set_default_device(request.param)
    yield request.param
    mx.set_default_device(before)


@pytest.fixture(params=OPSETS, ids=lambda opset: opset.name)
def ops(request: pytest.FixtureRequest, device: mx.Device) -> OpSet:
    """Run a test with each implementation on each device."""
    opset: OpSet = request.param
    return opset


@pytest.fixture(params=TOLERANCE, ids=lambda dtype: str(dtype).removeprefix("mlx.core."))
def dtype(request: pytest.FixtureRequest) -> mx.Dtype:
    """Run a test with each dtype that ops accept."""
    chosen: mx.Dtype = request.param
    return chosen


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Run a test without the run-time check of signatures."""
    with without_checks():
        yield
