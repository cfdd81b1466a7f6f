"""Pytest fixtures that run a project's Metal kernels through its own wrappers, without a Mac.

def test_norm(metal_sweep):
    assert_close(my_project.rms_norm(x), expected)

During such a test, `mx.fast.metal_kernel` is `metalhost.metal_kernel`. A wrapper may cache its
kernel object, because each call reads the current settings. On a Mac the fixtures replace nothing,
and the test runs once, on the GPU.
"""

import sys
from collections.abc import Iterator

import pytest

from metalhost.compilation.compiler import CompilerError, compiler
from metalhost.kernel import metal_kernel
from metalhost.settings import SWEEP, Settings, using

_ON_GPU = sys.platform == "darwin"
_PARAMETERS = (None,) if _ON_GPU else SWEEP


@pytest.fixture
def metal_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run and check kernels on the CPU, with the settings of `metalhost.using`."""
    _replace_metal_kernel(monkeypatch)


@pytest.fixture(params=_PARAMETERS, ids=str)
def metal_sweep(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Settings | None]:
    """Run the test with each of the settings in `metalhost.SWEEP`. On a Mac, yield None once."""
    _replace_metal_kernel(monkeypatch)
    settings: Settings | None = request.param
    if settings is None:
        yield None
        return
    with using(settings):
        yield settings


def _replace_metal_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    if _ON_GPU:
        return
    try:
        compiler()
    except CompilerError as error:
        pytest.skip(str(error))
    import mlx.core as mx  # imported late, because every run of pytest imports this plugin

    monkeypatch.setattr(mx.fast, "metal_kernel", metal_kernel)
