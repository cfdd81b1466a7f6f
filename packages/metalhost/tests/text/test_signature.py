"""The generated signature equals the signature of MLX, byte for byte.

MLX prints its text on any machine: `mx.export_function` traces the call, and `verbose=True` prints.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from metalhost import KernelTextError, metal_kernel
from metalhost.text.arrays import Input
from metalhost.text.element_type import element_type
from metalhost.text.signature import generate_signature

BF16 = mx.bfloat16
INDEX = "uint i = thread_position_in_grid.x;"


def mlx_text(spec: dict[str, Any], call: dict[str, Any]) -> str:
    kernel = mx.fast.metal_kernel(**spec)
    arrays = [value for value in call["inputs"] if isinstance(value, mx.array)]

    def traced(*given: mx.array) -> list[mx.array]:
        left = iter(given)
        inputs = [next(left) if isinstance(v, mx.array) else v for v in call["inputs"]]
        sizes = {"grid": (32, 1, 1), "threadgroup": (32, 1, 1)}
        return kernel(**{**call, **sizes, "inputs": inputs}, verbose=True)

    # MLX writes to file descriptor 1, not to Python's sys.stdout.
    with tempfile.TemporaryDirectory() as folder:
        printed = Path(folder) / "printed"
        standard_output = os.dup(1)
        with printed.open("w") as file:
            os.dup2(file.fileno(), 1)
            try:
                mx.export_function(f"{folder}/exported", traced, *arrays)
            finally:
                os.dup2(standard_output, 1)
                os.close(standard_output)
        return printed.read_text().split("```\n", 1)[1].rsplit("\n```", 1)[0]


def zeros(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.zeros(shape, dtype)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": (
        {"input_names": ["x"], "output_names": ["y"], "source": f"{INDEX} y[i] = x[i];"},
        {"inputs": [zeros(32)], "output_dtypes": [mx.float32]},
    ),
    "integers of more than 32 bits": (
        {"input_names": ["a", "b", "c"], "output_names": ["y"], "source": "y[0] = a + b + c;"},
        {"inputs": [2**31 - 1, 2**31, -(2**31) - 1], "output_dtypes": [mx.int64]},
    ),
    "scalars and small arrays": (
        {
            "input_names": ["a", "b", "c", "d", "e"],
            "output_names": ["y"],
            "source": f"{INDEX} y[i] = a + b + c[0] + d[0] + e[0];",
        },
        {
            "inputs": [7.5, 3, zeros(7), zeros(8), zeros(1, 1)],
            "output_dtypes": [mx.float32],
        },
    ),
    "templates": (
        {
            "input_names": ["x"],
            "output_names": ["y"],
            "source": f"{INDEX} y[i] = T(x[i]);",
            "header": "// a header\n",
        },
        {
            "inputs": [zeros(4, 8, dtype=BF16)],
            "output_dtypes": [mx.float16],
            "template": [("T", BF16), ("N", 12), ("negative", -3), ("flag", True), ("U", mx.int8)],
        },
    ),
    "shapes, strides and axes": (
        {
            "input_names": ["a", "b", "c"],
            "output_names": ["y", "z"],
            "source": f"{INDEX} y[i] = a_shape[0] + a_strides[1] + a_ndim + b_ndim + c_shape;",
        },
        {
            "inputs": [zeros(3, 6), zeros(3, dtype=mx.int32), 2.0],
            "output_dtypes": [mx.int32, mx.uint8],
        },
    ),
    "atomic outputs": (
        {
            "input_names": ["x"],
            "output_names": ["y"],
            "source": f"{INDEX} atomic_fetch_add_explicit(&y[0], x[i], memory_order_relaxed);",
            "atomic_outputs": True,
        },
        {"inputs": [zeros(32)], "output_dtypes": [mx.float32]},
    ),
    "all attributes": (
        {
            "input_names": [],
            "output_names": ["y"],
            "source": "dispatch_quadgroups_per_threadgroup dispatch_simdgroups_per_threadgroup "
            "dispatch_threads_per_threadgroup grid_origin grid_size quadgroup_index_in_threadgroup "
            "quadgroups_per_threadgroup simdgroup_index_in_threadgroup simdgroups_per_threadgroup "
            "thread_execution_width thread_index_in_quadgroup thread_index_in_simdgroup "
            "thread_index_in_threadgroup thread_position_in_grid thread_position_in_threadgroup "
            "threadgroup_position_in_grid threadgroups_per_grid threads_per_grid "
            "threads_per_simdgroup threads_per_threadgroup",
        },
        {"inputs": [], "output_dtypes": [mx.float32]},
    ),
    "all types": (
        {
            "input_names": [f"x{k}" for k in range(12)],
            "output_names": ["y"],
            "source": f"{INDEX} y[i] = x0[i];",
        },
        {
            "inputs": [
                zeros(16, dtype=dtype)
                for dtype in (
                    mx.bool_,
                    mx.int8,
                    mx.int16,
                    mx.int32,
                    mx.int64,
                    mx.uint8,
                    mx.uint16,
                    mx.uint32,
                    mx.uint64,
                    mx.float16,
                    mx.bfloat16,
                    mx.float32,
                )
            ],
            "output_dtypes": [mx.bool_],
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_text_equals_the_text_of_mlx(case: str) -> None:
    spec, call = CASES[case]
    spec = {"name": "k", **spec}
    shapes = [(32,)] * len(call["output_dtypes"])
    signature = generate_signature(
        "k",
        spec["source"],
        [
            (n, Input.from_value(v, True))
            for n, v in zip(spec["input_names"], call["inputs"], strict=True)
        ],
        [
            (name, element_type(dtype))
            for name, dtype in zip(spec["output_names"], call["output_dtypes"], strict=True)
        ],
        call.get("template", ()),
        spec.get("atomic_outputs", False),
    )
    ours = spec.get("header", "") + signature.prologue + spec["source"] + signature.epilogue
    assert ours == mlx_text(spec, {**call, "output_shapes": shapes})


def test_verbose_prints_the_text(capsys: pytest.CaptureFixture[str], host: None) -> None:
    spec, call = CASES["plain"]
    sizes: dict[str, Any] = {"grid": (32, 1, 1), "threadgroup": (32, 1, 1)}
    metal_kernel("k", **spec)(**call, **sizes, output_shapes=[(32,)], verbose=True)
    assert (
        capsys.readouterr().out.strip()
        == mlx_text({"name": "k", **spec}, {**call, "output_shapes": [(32,)]}).strip()
    )


def test_a_kernel_for_which_mlx_generates_an_invalid_signature_is_rejected(host: None) -> None:
    spec: dict[str, Any] = {
        "name": "k",
        "input_names": ["x"],
        "output_names": ["y", "z"],
        "source": "y[0] = x_shape[0];\nz[0] = 1;",
    }
    call: dict[str, Any] = {
        "inputs": [zeros(3, 6)],
        "output_dtypes": [mx.float32, mx.float32],
        "output_shapes": [(1,), (1,)],
    }
    assert mlx_text(spec, call).count(") {") == 2  # fails once MLX has fixed its signature
    with pytest.raises(KernelTextError, match="MLX needs an attribute"):
        metal_kernel(**spec)(**call, grid=(1, 1, 1), threadgroup=(1, 1, 1))
