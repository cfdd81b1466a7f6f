"""Thread attributes and sizes, over a grid that the threadgroups do not divide."""

import numpy as np
import pytest
from metalhost import SWEEP, Settings, metal_kernel, using
from numpy.typing import NDArray

GRID, GROUP = (50, 7, 3), (16, 4, 2)
TRIPLES = [
    "thread_position_in_grid",
    "thread_position_in_threadgroup",
    "threadgroup_position_in_grid",
    "threads_per_threadgroup",
    "dispatch_threads_per_threadgroup",
    "threads_per_grid",
    "grid_size",
    "threadgroups_per_grid",
    "grid_origin",
]
SINGLES = [
    "thread_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
    "dispatch_simdgroups_per_threadgroup",
    "thread_index_in_quadgroup",
    "quadgroup_index_in_threadgroup",
    "quadgroups_per_threadgroup",
    "dispatch_quadgroups_per_threadgroup",
    "threads_per_simdgroup",
    "thread_execution_width",
]


@pytest.mark.parametrize("settings", SWEEP, ids=str)
def test_all_attributes_of_all_threads(settings: Settings, host: None) -> None:
    values = [f"{name}.{c}" for name in TRIPLES for c in "xyz"] + SINGLES
    lines = [
        "const uint3 p = thread_position_in_grid, g = threads_per_grid;",
        f"device uint* o = y + ((p.z * g.y + p.y) * g.x + p.x) * {len(values)};",
        *(f"o[{k}] = {value};" for k, value in enumerate(values)),
    ]
    with using(settings):
        (y,) = metal_kernel("attributes", [], ["y"], "\n".join(lines))(
            inputs=[],
            output_shapes=[(*GRID[::-1], len(values))],
            output_dtypes=[np.uint32],
            grid=GRID,
            threadgroup=GROUP,
        )
    z, y_, x = np.indices(GRID[::-1])
    position = np.stack([x, y_, z], axis=-1)
    group, size = np.array(GROUP), np.array(GRID)
    within, of = position % group, position // group
    actual = np.minimum(group, size - of * group)
    index = (within[..., 2] * actual[..., 1] + within[..., 1]) * actual[..., 0] + within[..., 0]
    simdgroups = -(-actual.prod(axis=-1) // 32)

    def everywhere(values: object) -> NDArray[np.generic]:
        return np.broadcast_to(np.asarray(values), position.shape)

    triples = [
        position,
        within,
        of,
        actual,
        everywhere(group),
        everywhere(size),
        everywhere(size),
        everywhere(-(-size // group)),
        everywhere([0, 0, 0]),
    ]
    one = np.ones_like(index)
    singles = [
        index,
        index % 32,
        index // 32,
        simdgroups,
        4 * one,
        index % 4,
        index // 4,
        simdgroups * 8,
        32 * one,
        32 * one,
        32 * one,
    ]
    expected = np.concatenate([*triples, np.stack(singles, axis=-1)], axis=-1)
    np.testing.assert_array_equal(y, expected)


def test_a_threadgroup_is_limited_to_the_grid(host: None) -> None:
    (y,) = metal_kernel(
        "small", [], ["y"], "y[thread_position_in_grid.x] = threads_per_threadgroup.x;"
    )(
        inputs=[],
        output_shapes=[(5,)],
        output_dtypes=[np.int32],
        grid=(5, 1, 1),
        threadgroup=(256, 4, 1),
    )
    np.testing.assert_array_equal(y, np.full(5, 5))


@pytest.mark.parametrize(
    ("grid", "group", "message"),
    [
        ((0, 1, 1), (1, 1, 1), "grid: expected three numbers from 1 to"),
        ((1, 1, 1), (1, -1, 1), "threadgroup: expected three numbers from 1 to"),
        ((4096, 1, 1), (1025, 1, 1), "threadgroup: expected 1024 threads at most, got 1025"),
        (
            (1 << 20, 1 << 20, 1),
            (64, 1, 1),
            r"grid: expected 4294967295 .* at most, got 17179869184",
        ),
    ],
)
def test_invalid_sizes_are_rejected(
    grid: tuple[int, int, int], group: tuple[int, int, int], message: str
) -> None:
    kernel = metal_kernel("sizes", [], ["y"], "y[thread_position_in_grid.x] = 0;")
    with pytest.raises(ValueError, match=message):
        kernel(
            inputs=[], output_shapes=[(1,)], output_dtypes=[np.int32], grid=grid, threadgroup=group
        )
