"""Every op, over every OpSet, on every device, in every dtype."""

from __future__ import annotations

from collections.abc import Iterator

import jaxtyping
import mlx.core as mx
import pytest
from hypothesis import settings
from tinyllm_ops import OpSet
from tinyllm_ops.testing import DEVICES, OPSETS, TOLERANCE

# The same few examples on every run and every machine: a failure here is one that repeats.
settings.register_profile("repeatable", max_examples=10, derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(params=DEVICES, ids=lambda device: str(device.type).removeprefix("DeviceType."))
def device(request: pytest.FixtureRequest) -> Iterator[mx.Device]:
    """Compute on this device for the length of a test."""
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
    """Run a test with each dtype of the contract."""
    chosen: mx.Dtype = request.param
    return chosen


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Turn off the run-time check of signatures, which users do not have."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
