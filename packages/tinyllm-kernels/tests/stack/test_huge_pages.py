"""Stacks move the keys and values of large caches to pages of 2 MB."""

from pathlib import Path
from types import ModuleType

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_kernels import opset
from tinyllm_kernels.testing import LayerShape, make_caches, make_input, make_layers
from tinyllm_layers import Backend, Batch, make_stack

TRIES = 5
"""The system may refuse a request to move memory, e.g. while it scans that memory itself."""
ENOUGH = 4 << 10
"""A quarter of a cache of 16 MB, in kilobytes."""


def huge_kilobytes(x: mx.array) -> int:
    """Return the kilobytes of huge pages in the memory mappings that hold a part of x."""
    first = np.array(x.view(mx.uint8), copy=False).ctypes.data
    inside, found = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if "-" in name and not name.endswith(":"):
            begin, end = (int(bound, 16) for bound in name.split("-"))
            inside = begin < first + x.nbytes and first < end
        elif inside and name == "AnonHugePages:":
            found += int(rest[0])
    return found


@pytest.fixture(autouse=True)
def system_with_huge_pages(native: ModuleType) -> None:
    probe = mx.ones((4 << 20,), mx.uint8)
    native.use_huge_pages(probe)
    if not huge_kilobytes(probe):
        pytest.skip("this system moves no memory to huge pages")


def test_new_pages_are_huge_before_a_pass(native: ModuleType) -> None:
    ops = opset("cpu")
    assert isinstance(ops, Backend)
    moved_later = 0
    for _ in range(TRIES):
        zeros = ops.zeros((4, 2 << 20), mx.float32)
        mx.eval(zeros)
        if huge_kilobytes(zeros) >= ENOUGH:
            return
        native.use_huge_pages(zeros)
        moved_later += huge_kilobytes(zeros) >= ENOUGH
    if moved_later < TRIES:
        pytest.skip(f"this system refused to move {TRIES - moved_later} of {TRIES} arrays")
    pytest.fail(f"none of {TRIES} arrays was in huge pages, and all could be moved afterwards")


@pytest.mark.parametrize("dtype", [mx.uint32, mx.bfloat16, mx.float32])
@pytest.mark.parametrize("shape", [(0, 3), (1,), (7, 5), (3, 1_000_003)])
def test_zeros_are_zeros(shape: tuple[int, ...], dtype: mx.Dtype) -> None:
    ops = opset("cpu")
    assert isinstance(ops, Backend)
    used = mx.full(shape, 3, dtype)  # memory that the next array may get
    mx.eval(used)
    del used
    zeros = ops.zeros(shape, dtype)
    assert (zeros.shape, zeros.dtype) == (shape, dtype)
    assert not zeros.astype(mx.float32).any()


def test_more_memory_than_there_is_is_an_error() -> None:
    """No system has 2^50 bytes of address space."""
    ops = opset("cpu")
    assert isinstance(ops, Backend)
    with pytest.raises(RuntimeError, match=f"unable to allocate {1 << 50} bytes"):
        mx.eval(ops.zeros((1 << 30, 1 << 20), mx.uint8))
    assert not ops.zeros((7,), mx.uint8).any()


def test_caches_are_moved_to_huge_pages(native: ModuleType) -> None:
    shape, dtype, ops = LayerShape(kv_heads=4, head_dim=128), mx.float32, opset("cpu")
    stack = make_stack(make_layers(shape, 1, dtype, ops), ops)
    batch = Batch.at(0, 16, 1)  # keys of 16 * 4 * 256 * 128 floats: 8 MB
    moved_later = 0
    for _ in range(TRIES):
        caches = make_caches("dense", 1, shape, dtype)
        mx.eval(stack(make_input(batch, shape.width, dtype, seed=1), batch, caches))
        if min(huge_kilobytes(array) for array in caches[0].arrays) >= ENOUGH:
            return
        for array in caches[0].arrays:
            native.use_huge_pages(array)
        moved_later += min(huge_kilobytes(array) for array in caches[0].arrays) >= ENOUGH
    if moved_later < TRIES:
        pytest.skip(f"this system refused to move {TRIES - moved_later} of {TRIES} caches")
    pytest.fail(f"the stack moved none of {TRIES} caches, which could be moved afterwards")
