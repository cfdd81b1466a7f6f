"""Fixtures that run a project's own Metal kernels, through its own wrappers, where there is no Mac.

def test_norm(metal_sweep):
    assert_close(my_project.rms_norm(x), expected)

`mx.fast.metal_kernel` is `metalhost.metal_kernel` for the length of the test. A wrapper that keeps
its kernel object may keep it: settings are those of the moment of the call. On a Mac nothing is
replaced, and the same test runs once, on the GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from metalhost.compiler import CompilerError, compiler
from metalhost.kernel import metal_kernel
from metalhost.settings import SWEEP, Settings, using

_ON_GPU = sys.platform == "darwin"
_PARAMETERS = (None,) if _ON_GPU else SWEEP


@pytest.fixture
def metal_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """`mx.fast.metal_kernel` runs and checks kernels on the CPU; `metalhost.using` says how."""
    _replace(monkeypatch)


@pytest.fixture(params=_PARAMETERS, ids=str)
def metal_sweep(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Settings | None]:
    """The same, once by each of the settings of `metalhost.SWEEP`; None is the GPU of a Mac."""
    _replace(monkeypatch)
    settings: Settings | None = request.param
    if settings is None:
        yield None
        return
    with using(settings):
        yield settings


def _replace(monkeypatch: pytest.MonkeyPatch) -> None:
    if _ON_GPU:
        return
    try:
        compiler()
    except CompilerError as error:
        pytest.skip(str(error))
    import mlx.core as mx  # not with the plugin, which every run of pytest imports

    monkeypatch.setattr(mx.fast, "metal_kernel", metal_kernel)
