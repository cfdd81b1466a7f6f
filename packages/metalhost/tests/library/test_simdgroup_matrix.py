"""8 x 8 matrices of a simdgroup: products, loads, stores and the layout of elements."""

import ml_dtypes
import numpy as np
import pytest
from metalhost import SWEEP, Settings, metal_kernel, using
from numpy.typing import NDArray

DTYPE = {"float": np.float32, "half": np.float16, "bfloat": ml_dtypes.bfloat16}
RNG = np.random.default_rng(1)


def run(source: str, *inputs: NDArray[np.generic], out: int = 64) -> NDArray[np.generic]:
    names = ["a", "b", "c"][: len(inputs)]
    (y,) = metal_kernel("matrices", names, ["y"], source)(
        inputs=inputs,
        output_shapes=[(out,)],
        output_dtypes=[np.float32],
        grid=(32, 1, 1),
        threadgroup=(32, 1, 1),
    )
    assert isinstance(y, np.ndarray)
    return y


@pytest.mark.parametrize("kind", DTYPE)
def test_multiply_accumulate(kind: str, host: None) -> None:
    a, b, c = (RNG.integers(-4, 4, (8, 8)) for _ in range(3))
    source = f"""
    simdgroup_matrix<{kind}, 8, 8> ma, mb;
    simdgroup_float8x8 mc, product;
    simdgroup_load(ma, a, 8);
    simdgroup_load(mb, b, 8);
    simdgroup_load(mc, c, 8);
    simdgroup_multiply(product, ma, mb);
    simdgroup_multiply_accumulate(mc, ma, mb, mc);
    simdgroup_store(product, y, 8);
    simdgroup_store(mc, y, 8, ulong2(0, 8), true);
    uint i = thread_index_in_threadgroup;
    """
    narrow = [m.astype(DTYPE[kind]) for m in (a, b)]
    y = run(source, *narrow, c.astype(np.float32), out=128)
    np.testing.assert_array_equal(y[:64].reshape(8, 8), a @ b)
    np.testing.assert_array_equal(y[64:].reshape(8, 8), (a @ b + c).T)


@pytest.mark.parametrize("left", DTYPE)
@pytest.mark.parametrize("right", DTYPE)
def test_products_of_two_types(left: str, right: str, host: None) -> None:
    a, b = (RNG.integers(-4, 5, (8, 8)).astype(np.float32) for _ in range(2))
    source = f"""
    simdgroup_matrix<{left}, 8, 8> ma;
    simdgroup_matrix<{right}, 8, 8> mb;
    simdgroup_load(ma, a, 8);
    simdgroup_load(mb, b, 8);
    simdgroup_float8x8 product = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_multiply_accumulate(product, ma, mb, product);
    simdgroup_store(product, y, 8);
    uint i = thread_index_in_threadgroup;
    """
    y = run(source, a.astype(DTYPE[left]), b.astype(DTYPE[right]))
    np.testing.assert_array_equal(y.reshape(8, 8), a @ b)


@pytest.mark.parametrize("settings", SWEEP, ids=str)
def test_loads_and_stores_with_strides_origins_and_transposition(
    settings: Settings, host: None
) -> None:
    a = RNG.standard_normal((16, 20)).astype(np.float32)
    source = """
    threadgroup float tile[12 * 16];
    uint i = thread_index_in_threadgroup;
    simdgroup_float8x8 m, t;
    simdgroup_load(m, a, 20, ulong2(12, 8));
    simdgroup_load(t, a + 20, 20, ulong2(3, 2), true);
    simdgroup_store(m, tile, 12, ulong2(4, 0));
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint k = i; k < 64; k += 32) y[k] = tile[k / 8 * 12 + 4 + k % 8];
    simdgroup_store(t, y + 64, 8);
    """
    with using(settings):
        y = run(source, a, out=128)
    np.testing.assert_array_equal(y[:64].reshape(8, 8), a[8:16, 12:20])
    np.testing.assert_array_equal(y[64:].reshape(8, 8), a[3:11, 3:11].T)


def test_filled_and_diagonal_matrices(host: None) -> None:
    source = """
    uint i = thread_index_in_threadgroup;
    simdgroup_store(make_filled_simdgroup_matrix<float, 8, 8>(2.0f), y, 8);
    simdgroup_store(make_diagonal_simdgroup_matrix<float, 8, 8>(3.0f), y, 8, ulong2(0, 8));
    simdgroup_store(simdgroup_float8x8(4.0f), y, 8, ulong2(0, 16));
    """
    filled, diagonal, constructed = run(source, out=192).reshape(3, 8, 8)
    np.testing.assert_array_equal(filled, np.full((8, 8), 2))
    np.testing.assert_array_equal(diagonal, 3 * np.eye(8))
    np.testing.assert_array_equal(constructed, 4 * np.eye(8))


def test_elements_of_each_lane(host: None) -> None:
    # The layout that MLX's own kernels rely on (`get_coord` of its steel kernels).
    source = """
    simdgroup_float8x8 m;
    simdgroup_load(m, a, 8);
    uint lane = thread_index_in_simdgroup;
    y[2 * lane] = m.thread_elements()[0];
    y[2 * lane + 1] = m.thread_elements()[1];
    """
    y = run(source, np.arange(64, dtype=np.float32))
    lane = np.arange(32)
    quad = lane // 4
    row = (quad & 4) + (lane // 2) % 4
    column = (quad & 2) * 2 + (lane % 2) * 2
    np.testing.assert_array_equal(y.reshape(32, 2)[:, 0], row * 8 + column)
    np.testing.assert_array_equal(y.reshape(32, 2)[:, 1], row * 8 + column + 1)
