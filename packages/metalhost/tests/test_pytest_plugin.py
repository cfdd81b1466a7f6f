"""Pytest fixtures of the package, as a project's tests use them."""

import functools
import sys

import metalhost
import mlx.core as mx
import pytest
from metalhost.settings import current

# On a Mac the fixtures replace nothing.
pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="kernels run on the GPU of a Mac")

SEEN: list[metalhost.Settings | None] = []


@functools.cache
def wrapper() -> object:
    """Make a kernel object once, as a wrapper of a project does."""
    source = "uint i = thread_position_in_grid.x; y[i] = T(2) * x[i];"
    return mx.fast.metal_kernel("twice", ["x"], ["y"], source)


def twice(x: mx.array) -> mx.array:
    kernel = wrapper()
    assert callable(kernel)
    (y,) = kernel(
        inputs=[x],
        template=[("T", x.dtype)],
        grid=(x.size, 1, 1),
        threadgroup=(64, 1, 1),
        output_shapes=[x.shape],
        output_dtypes=[x.dtype],
    )
    return y


def test_a_wrapper_runs_unchanged(metal_host: None) -> None:
    assert mx.fast.metal_kernel is metalhost.metal_kernel
    x = mx.arange(100).astype(mx.bfloat16)
    assert mx.array_equal(twice(x), 2 * x)


def test_a_wrapper_runs_with_every_setting_of_the_sweep(
    metal_sweep: metalhost.Settings | None,
) -> None:
    SEEN.append(metal_sweep)
    assert current() == metal_sweep
    x = mx.arange(100).astype(mx.float16).reshape(10, 10)
    assert mx.array_equal(twice(x), 2 * x)


def test_the_fixtures_restore_mlx_and_the_settings() -> None:
    assert tuple(SEEN) == metalhost.SWEEP
    assert mx.fast.metal_kernel is not metalhost.metal_kernel
    assert current() == metalhost.Settings()


def test_without_a_compiler_tests_are_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("METALHOST_CXX", "no-such-compiler")
    with pytest.raises(pytest.skip.Exception, match="no-such-compiler"):
        request.getfixturevalue("metal_host")
