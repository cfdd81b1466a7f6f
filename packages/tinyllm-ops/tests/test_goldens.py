"""Compare with the results of PyTorch in the file that tools/goldens/ops.py writes."""

from pathlib import Path

import mlx.core as mx
import pytest
from tinyllm_ops import OpSet, silu
from tinyllm_ops.testing import assert_close, exact

GOLDENS = Path(__file__).parent / "goldens" / "ops.safetensors"


def golden(case: str) -> dict[str, mx.array]:
    """Return the inputs of a case by name, and its result as "y"."""
    tensors = mx.load(str(GOLDENS))
    prefix = f"{case}."
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


@pytest.mark.parametrize(
    ("op", "case", "rest"),
    [
        ("linear", "linear_rows", {}),
        ("linear", "linear_batch", {}),
        ("swiglu", "swiglu", {}),
        ("softmax", "softmax", {}),
        ("rms_norm", "rms_norm", {"eps": 1e-6}),
        ("attention", "attention_plain", {}),
        ("attention", "attention_causal", {"mask": "causal"}),
        ("attention", "attention_grouped", {"mask": "causal"}),
        ("attention", "attention_additive", {}),
    ],
)
def test_equals_pytorch(ops: OpSet, op: str, case: str, rest: dict[str, float | str]) -> None:
    arguments = golden(case)
    y = arguments.pop("y")
    assert_close(getattr(ops, op)(**arguments, **rest), exact(y))


def test_silu_equals_pytorch(device: mx.Device) -> None:
    case = golden("silu")
    assert_close(silu(case["x"]), exact(case["y"]))


def test_rope_equals_transformers(ops: OpSet) -> None:
    case = golden("rope")
    y = ops.rope(case["x"], case["positions"], 1e6)
    # Tokens 0 to 2 have positions up to 100 and the tolerance of float32. Token 4 of the second row
    # has position 4,000. The error of its angle is proportional to the position, so tokens 3 and 4
    # have the tolerance of float16.
    for tokens in (slice(0, 3), slice(3, 5)):
        limit = mx.float32 if tokens.stop == 3 else mx.float16
        assert_close(y[:, tokens], exact(case["y"][:, tokens]), limit)
