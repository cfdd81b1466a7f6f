"""What computes when nobody says, and what is refused."""

import mlx.core as mx
import pytest
from tinyllm_kernels import Arithmetic, BackendError
from tinyllm_ops import MLX, REFERENCE, OpSet


def absent(name: str) -> OpSet:
    if name == "cpu":
        raise BackendError("no C++ compiler was there")
    return MLX


def test_without_native_kernels_mlx_computes_in_float32_and_a_note_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if mx.default_device().type == mx.gpu:  # there they are not the first choice, nor missed
        pytest.skip("a GPU computes without the CPU's kernels")
    monkeypatch.setattr("tinyllm_kernels.arithmetic.opset", absent)
    chosen = Arithmetic.choose()
    assert (chosen.ops, chosen.dtype) == (MLX, mx.float32)
    assert chosen.note == "no CPU kernels, MLX computes: no C++ compiler was there"
    with pytest.raises(BackendError, match="no C"):
        Arithmetic.choose(ops="cpu")


@pytest.mark.parametrize(("metal", "name"), [(True, "metal"), (False, "mlx")])
def test_a_gpu_computes_with_metal_kernels_on_a_mac_and_with_mlx_elsewhere(
    monkeypatch: pytest.MonkeyPatch, metal: bool, name: str
) -> None:
    asked = []

    def opset(name: str) -> OpSet:
        asked.append(name)
        return MLX

    monkeypatch.setattr("tinyllm_kernels.arithmetic.opset", opset)
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    monkeypatch.setattr(mx.metal, "is_available", lambda: metal)
    assert (Arithmetic.choose().device, asked) == ("gpu", [name])


def test_metal_where_there_is_none_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    with pytest.raises(BackendError, match="MLX finds no Metal device"):
        Arithmetic.choose(ops="metal")


def test_what_is_asked_for_is_chosen() -> None:
    chosen = Arithmetic.choose("reference", "bfloat16")
    assert (chosen.ops, chosen.dtype, chosen.note) == (REFERENCE, mx.bfloat16, "")


@pytest.mark.parametrize("choice", [{"ops": "cuda"}, {"dtype": "int8"}])
def test_an_unknown_name_is_refused_with_those_there_are(choice: dict[str, str]) -> None:
    (name,) = choice
    with pytest.raises(ValueError, match=f"{name}: expected one of auto, "):
        Arithmetic.choose(**choice)
