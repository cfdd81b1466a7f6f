"""The automatic choice of a backend and a dtype, and choices that are refused."""

from dataclasses import replace

import mlx.core as mx
import pytest
from tinyllm_kernels import BackendChoice, BackendError, available, opset
from tinyllm_kernels.backend import BACKENDS, BackendEntry
from tinyllm_ops import MLX, REFERENCE, OpSet


def absent(name: str) -> OpSet:
    if name == "cpu":
        raise BackendError("no C++ compiler was there")
    return MLX


@pytest.fixture
def on_cpu() -> None:
    """Skip a test if MLX computes on a GPU, because the CPU kernels are then not chosen."""
    if mx.default_device().type == mx.gpu:
        pytest.skip("a GPU computes without the CPU's kernels")


@pytest.mark.usefixtures("on_cpu")
def test_without_native_kernels_mlx_computes_in_float32_and_a_note_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tinyllm_kernels.backend_choice.opset", absent)
    chosen = BackendChoice.choose()
    assert (chosen.ops, chosen.dtype) == (MLX, mx.float32)
    assert chosen.note == "no CPU kernels: no C++ compiler was there; MLX computes"
    with pytest.raises(BackendError, match="no C"):
        BackendChoice.choose(ops="cpu")


@pytest.mark.usefixtures("on_cpu")
def test_a_broken_backend_is_an_error_also_of_an_automatic_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TINYLLM_CPU_ISA", "mmx")
    if not available()[0].detail.endswith("got mmx"):
        pytest.skip("no native backend")
    with pytest.raises(BackendError, match="got mmx"):
        BackendChoice.choose()


@pytest.mark.usefixtures("on_cpu")
def test_an_unexpected_error_is_not_taken_for_an_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> OpSet:
        raise OSError("the disk is gone")

    monkeypatch.setattr("tinyllm_kernels.backend_choice.opset", broken)
    with pytest.raises(OSError, match="the disk is gone"):
        BackendChoice.choose()


def test_a_new_backend_is_one_row_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    made = replace(MLX, name="cuda")
    row = BackendEntry("cuda", lambda: True, lambda: "an imagined GPU", lambda: made)
    monkeypatch.setattr("tinyllm_kernels.backend.BACKENDS", (row, *BACKENDS))
    monkeypatch.setattr("tinyllm_kernels.backend_choice.BACKENDS", (row, *BACKENDS))
    assert str(available()[0]) == "cuda: an imagined GPU"
    assert opset("cuda") is made
    assert BackendChoice.choose().ops is made


@pytest.mark.parametrize(("metal", "name"), [(True, "metal"), (False, "mlx")])
def test_a_gpu_computes_with_metal_kernels_on_a_mac_and_with_mlx_elsewhere(
    monkeypatch: pytest.MonkeyPatch, metal: bool, name: str
) -> None:
    asked = []

    def opset(name: str) -> OpSet:
        asked.append(name)
        return MLX

    monkeypatch.setattr("tinyllm_kernels.backend_choice.opset", opset)
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    monkeypatch.setattr(mx.metal, "is_available", lambda: metal)
    assert (BackendChoice.choose().device, asked) == ("gpu", [name])


def test_requesting_absent_metal_is_an_error_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    with pytest.raises(BackendError, match="MLX finds no Metal device"):
        BackendChoice.choose(ops="metal")


def test_a_requested_backend_and_dtype_are_chosen() -> None:
    chosen = BackendChoice.choose("reference", "bfloat16")
    assert (chosen.ops, chosen.dtype, chosen.note) == (REFERENCE, mx.bfloat16, "")


@pytest.mark.parametrize("choice", [{"ops": "cuda"}, {"dtype": "int8"}])
def test_an_unknown_name_is_refused_with_the_known_names(choice: dict[str, str]) -> None:
    (name,) = choice
    with pytest.raises(ValueError, match=f"{name}: expected one of auto, "):
        BackendChoice.choose(**choice)
