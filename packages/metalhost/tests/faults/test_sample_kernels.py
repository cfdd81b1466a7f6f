"""Two realistic kernels: correct with every setting, and reported without one of their barriers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from metalhost import SWEEP, KernelFaultError, Settings, metal_kernel, using
from numpy.typing import NDArray

BF16 = ml_dtypes.bfloat16
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
RMS_NORM = f"""
    threadgroup float partial[SIMDGROUPS], inverse;
    const uint row = threadgroup_position_in_grid.y;
    const uint lane = thread_index_in_simdgroup, sg = simdgroup_index_in_threadgroup;
    float sum = 0;
    for (uint i = thread_position_in_threadgroup.x; i < uint(D); i += 32 * SIMDGROUPS) {{
      const float v = x[row * D + i];
      sum += v * v;
    }}
    sum = simd_sum(sum);
    if (lane == 0) partial[sg] = sum;
    {BARRIER}
    if (sg == 0) {{
      const float all = simd_sum(lane < SIMDGROUPS ? partial[lane] : 0.0f);
      if (lane == 0) inverse = metal::precise::rsqrt(all / D + eps);
    }}
    {BARRIER}
    for (uint i = thread_position_in_threadgroup.x; i < uint(D); i += 32 * SIMDGROUPS) {{
      y[row * D + i] = T(float(x[row * D + i]) * inverse * float(w[i]));
    }}
"""
# c = a b. Four simdgroups compute a tile of 16 x 16. They load blocks of 16 columns of a and
# 16 rows of b into threadgroup memory.
MATMUL = f"""
    constexpr int STRIDE = 20;
    threadgroup T a_tile[16 * STRIDE], b_tile[16 * STRIDE];
    threadgroup float c_tile[16 * 16];
    const int m0 = threadgroup_position_in_grid.y * 16, n0 = threadgroup_position_in_grid.x * 16;
    const int thread_index = thread_index_in_threadgroup, sg = simdgroup_index_in_threadgroup;
    const int row = sg / 2 * 8, column = sg % 2 * 8;
    simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (int k0 = 0; k0 < K; k0 += 16) {{
      {BARRIER}
      for (int i = thread_index; i < 256; i += 128) {{
        const int r = i / 16, c = i % 16;
        a_tile[r * STRIDE + c] = m0 + r < M && k0 + c < K ? a[(m0 + r) * K + k0 + c] : T(0);
        b_tile[r * STRIDE + c] = k0 + r < K && n0 + c < N ? b[(k0 + r) * N + n0 + c] : T(0);
      }}
      {BARRIER}
      for (int k = 0; k < 16; k += 8) {{
        simdgroup_matrix<T, 8, 8> left, right;
        simdgroup_load(left, a_tile + row * STRIDE + k, STRIDE);
        simdgroup_load(right, b_tile + k * STRIDE + column, STRIDE);
        simdgroup_multiply_accumulate(sum, left, right, sum);
      }}
    }}
    simdgroup_store(sum, c_tile + row * 16 + column, 16);
    {BARRIER}
    for (int i = thread_index; i < 256; i += 128) {{
      const int r = m0 + i / 16, c = n0 + i % 16;
      if (r < M && c < N) y[r * N + c] = T(c_tile[i]);
    }}
"""


@dataclass(frozen=True)
class Sample:
    """Kernel with its arguments and expected output."""

    name: str
    inputs: dict[str, Any]
    source: str
    call: dict[str, Any]
    expected: NDArray[np.float64]

    def run(self, source: str) -> NDArray[np.generic]:
        kernel = metal_kernel(self.name, list(self.inputs), ["y"], source)
        shape = self.expected.shape
        (y,) = kernel(
            inputs=list(self.inputs.values()),
            output_shapes=[shape],
            output_dtypes=[BF16],
            **self.call,
        )
        return np.asarray(y)

    def is_close(self, y: NDArray[np.generic]) -> bool:
        error = np.abs(y.astype(np.float64) - self.expected).max()
        return bool(error <= 1.6e-2 * np.abs(self.expected).max())  # two roundings to bfloat16


def rms_norm(rows: int = 3, dim: int = 200) -> Sample:
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal(shape).astype(BF16) for shape in ((rows, dim), dim))
    exact = x.astype(np.float64)
    scale = np.sqrt((exact**2).mean(axis=1, keepdims=True) + 1e-5)
    return Sample(
        "rms_norm",
        {"x": x, "w": w, "eps": 1e-5},
        RMS_NORM,
        {
            "template": [("T", BF16), ("D", dim), ("SIMDGROUPS", 4)],
            "grid": (128, rows, 1),
            "threadgroup": (128, 1, 1),
        },
        exact / scale * w.astype(np.float64),
    )


def matmul(m: int = 23, n: int = 33, k: int = 31) -> Sample:
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal(shape).astype(BF16) for shape in ((m, k), (k, n)))
    return Sample(
        "matmul",
        {"a": a, "b": b},
        MATMUL,
        {
            "template": [("T", BF16), ("M", m), ("N", n), ("K", k)],
            "grid": (128 * -(-n // 16), -(-m // 16), 1),
            "threadgroup": (128, 1, 1),
        },
        a.astype(np.float64) @ b.astype(np.float64),
    )


SAMPLES = [rms_norm, matmul]


@pytest.mark.parametrize("settings", SWEEP, ids=str)
@pytest.mark.parametrize("sample", SAMPLES)
def test_correct_with_every_setting_of_the_sweep(
    sample: Callable[[], Sample], settings: Settings, host: None
) -> None:
    made = sample()
    with using(settings):
        assert made.is_close(made.run(made.source))


MUTANTS = [(sample, n) for sample in SAMPLES for n in range(sample().source.count(BARRIER))]


@pytest.mark.parametrize(("sample", "n"), MUTANTS)
def test_a_removed_barrier_is_reported_as_a_race(
    sample: Callable[[], Sample], n: int, host: None
) -> None:
    made = sample()
    parts = made.source.split(BARRIER)
    source = BARRIER.join(parts[: n + 1]) + BARRIER.join(["", *parts[n + 1 :]])[len(BARRIER) :]
    with pytest.raises(KernelFaultError, match="race"):
        made.run(source)
    # Wrong numbers depend on the order of threads. At least one of these four orders shows them.
    wrong = 0
    for seed in range(4):
        with using(Settings(mode="fast", seed=seed)):
            wrong += not made.is_close(made.run(source))
    assert wrong
