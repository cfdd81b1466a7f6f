"""Slices of tensors are read from a file without the rest of the tensors."""

import math
import os
from pathlib import Path

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tinyllm_qwen.checkpoint.slice_reader import read_slices
from tinyllm_qwen.checkpoint.stored_tensor import StoredTensor, TensorSlice
from tinyllm_qwen.errors import CheckpointError

SHAPES = [(4,), (3, 5), (4, 4), (2, 3, 3), (3, 2, 4)]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StoredTensor]:
    """A file with a tensor of each shape, whose numbers are all different."""
    path = tmp_path_factory.mktemp("slices") / "model.safetensors"
    arrays = {str(shape): numbers(shape) for shape in SHAPES}
    mx.save_safetensors(str(path), arrays)
    return {
        name: StoredTensor(
            dtype="F32", shape=array.shape, pieces=(TensorSlice(shard=path, key=name),)
        )
        for name, array in arrays.items()
    }


def numbers(shape: tuple[int, ...]) -> mx.array:
    return mx.arange(math.prod(shape), dtype=mx.float32).reshape(shape)


@given(st.sampled_from(SHAPES), st.data())
def test_a_slice_has_the_numbers_of_the_whole_tensor(
    stored: dict[str, StoredTensor], shape: tuple[int, ...], data: st.DataObject
) -> None:
    starts = [data.draw(st.integers(0, size - 1)) for size in shape]
    stops = [data.draw(st.integers(a + 1, size)) for a, size in zip(starts, shape, strict=True)]
    ranges = tuple(map(range, starts, stops))
    read = read_slices(stored, {str(shape): ranges}, None)[str(shape)]
    assert mx.array_equal(read, numbers(shape)[tuple(map(slice, starts, stops))])


def test_a_file_that_is_truncated_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    mx.save_safetensors(str(path), {"first": numbers((8,)), "last": numbers((8,))})
    tensors = {
        name: StoredTensor(dtype="F32", shape=(8,), pieces=(TensorSlice(shard=path, key=name),))
        for name in ("first", "last")
    }
    slices = dict.fromkeys(tensors, (range(8),))
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated"):
        read_slices(tensors, slices, None, lambda *_: os.truncate(path, 100))
