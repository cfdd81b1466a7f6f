"""Weights that do not fit into memory are refused before they are read."""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tinyllm_layers import Backend
from tinyllm_ops import REFERENCE, OpSet, QuantizedTensor, Weight
from tinyllm_qwen import CheckpointError, QwenConfig, load
from tinyllm_qwen.checkpoint.weights import load_part, load_weights
from tinyllm_qwen.errors import MemoryShortageError

FREE = "tinyllm_qwen.checkpoint.memory_check.free_memory"


@pytest.fixture
def folder(random_checkpoint: Callable[..., Any]) -> Path:
    made = random_checkpoint(quantization={"group_size": 32, "bits": 4}).fill(mx.bfloat16)
    return Path(made.quantize(["embed_tokens"], 32, 4, "affine").save().folder)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_weights_take_what_the_check_expects(
    folder: Path, dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = QwenConfig.from_folder(folder)
    weights = load_weights(folder, config, dtype=dtype)
    size = sum(weight.nbytes for weight in weights.values())
    monkeypatch.setattr(FREE, lambda: size)
    load_weights(folder, config, dtype=dtype)
    monkeypatch.setattr(FREE, lambda: size - 1)
    message = "the weights take .* of memory, .* are free: .* smaller model, or one in 4 bits"
    with pytest.raises(CheckpointError, match=f"^{re.escape(str(folder))}: {message}"):
        load_weights(folder, config, dtype=dtype)


def test_a_rank_needs_memory_for_its_part_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = QwenConfig.from_folder(folder)
    weights, _ = load_part(folder, config, 1, 2)
    size = sum(weight.nbytes for weight in weights.values())
    monkeypatch.setattr(FREE, lambda: size)
    load_part(folder, config, 1, 2)
    monkeypatch.setattr(FREE, lambda: size - 1)
    with pytest.raises(CheckpointError, match="the weights take"):
        load_part(folder, config, 1, 2)


def test_ranks_on_one_machine_need_memory_for_all_their_parts(folder: Path) -> None:
    config, size = QwenConfig.from_folder(folder), 0
    for rank in range(2):
        weights, _ = load_part(folder, config, rank, 2)
        size += sum(weight.nbytes for weight in weights.values())
    load_part(folder, config, 1, 2, local_ranks=[0, 1], free=size)
    message = "the weights of the 2 ranks on this machine take"
    with pytest.raises(MemoryShortageError, match=message) as caught:
        load_part(folder, config, 1, 2, local_ranks=[0, 1], free=size - 1)
    assert caught.value.needed == size


@pytest.mark.parametrize("ranks", [1, 2])
def test_weights_take_what_the_backend_stores(
    folder: Path, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This backend stores codes of 4 bits in 8."""

    def prepared_bytes(weight: Weight) -> int:
        packed = weight.packed.nbytes if isinstance(weight, QuantizedTensor) else 0
        return weight.nbytes + packed

    def read() -> Mapping[str, Weight]:
        config = QwenConfig.from_folder(folder)
        if ranks == 1:
            return load_weights(folder, config, prepared_bytes=prepared_bytes)
        return load_part(folder, config, 1, ranks, prepared_bytes=prepared_bytes)[0]

    weights = read()
    size = sum(map(prepared_bytes, weights.values()))
    assert size > sum(weight.nbytes for weight in weights.values())
    monkeypatch.setattr(FREE, lambda: size)
    read()
    monkeypatch.setattr(FREE, lambda: size - 1)
    with pytest.raises(MemoryShortageError) as caught:
        read()
    assert (caught.value.needed, caught.value.free) == (size, size - 1)


def test_a_model_is_loaded_if_its_backend_has_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {field.name: getattr(REFERENCE, field.name) for field in fields(OpSet)}
    backend = Backend(**plain, prepared_bytes=lambda weight: 2 * weight.nbytes)
    size = load("pico")[0].nbytes
    monkeypatch.setattr(FREE, lambda: 2 * size - 1)
    load("pico")
    with pytest.raises(MemoryShortageError, match="the weights take"):
        load("pico", ops=backend)
    monkeypatch.setattr(FREE, lambda: 2 * size)
    load("pico", ops=backend)


def test_nothing_is_read_of_a_file_that_is_too_large(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FREE, lambda: 1000)
    progress: list[int] = []
    with pytest.raises(CheckpointError, match=r"1\.0 kB are free"):
        load_weights(
            folder,
            QwenConfig.from_folder(folder),
            progress=lambda done, _: progress.append(done),
        )
    assert not progress
