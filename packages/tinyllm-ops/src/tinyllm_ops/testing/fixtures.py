"""Fixtures of pytest: every OpSet, device and dtype. A conftest.py imports those it needs.

Fixtures that yield are decorated with `no_type_check`: pytest does not recognize a generator that
the run-time check of signatures wraps.
"""

from collections.abc import Iterator
from typing import no_type_check

import mlx.core as mx
import pytest

from tinyllm_ops.opset import OpSet
from tinyllm_ops.testing import DEVICES, OPSETS, TOLERANCE, without_checks


@pytest.fixture(params=DEVICES, ids=lambda device: str(device.type).removeprefix("DeviceType."))
@no_type_check
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
@no_type_check
def unchecked() -> Iterator[None]:
    """Run a test without the run-time check of signatures.

    The check takes most of the time of a test that calls functions very many times. Other tests
    call the same functions with it.
    """
    with without_checks():
        yield
