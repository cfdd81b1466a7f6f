"""MLX and the safetensors library can read the files that SafetensorsWriter writes."""

import json
from pathlib import Path

import mlx.core as mx
import pytest
import safetensors
from tinyllm_qwen.checkpoint.safetensors_file import DTYPE_BYTES, read_header
from tinyllm_qwen.checkpoint.safetensors_writer import DTYPES, SafetensorsWriter, encode_header

TENSORS = {
    "codes": mx.random.randint(0, 1 << 30, (3, 5)).astype(mx.uint32),
    "bytes": mx.random.randint(0, 256, (7,)).astype(mx.uint8),
    "bfloat": mx.random.normal((2, 3, 4)).astype(mx.bfloat16),
    "half": mx.random.normal((5,)).astype(mx.float16),
    "empty": mx.zeros((0, 4), mx.bfloat16),
    "turned": mx.random.randint(0, 256, (3, 4)).astype(mx.uint8).T,  # not in row-major order
    "columns": mx.random.normal((6, 8))[:, 1:4].T,
}


def described(tensors: dict[str, mx.array]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (DTYPES[array.dtype], tuple(array.shape)) for name, array in tensors.items()}


def write(path: Path, tensors: dict[str, mx.array]) -> Path:
    with SafetensorsWriter(path, described(tensors)) as writer:
        for name, array in tensors.items():
            writer.write(name, array)
    return path


def test_mlx_reads_every_number(tmp_path: Path) -> None:
    arrays, metadata = mx.load(
        str(write(tmp_path / "x.safetensors", TENSORS)), return_metadata=True
    )
    assert metadata == {"format": "mlx"}
    assert arrays.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        assert arrays[name].dtype == array.dtype
        assert mx.array_equal(arrays[name], array)  # type: ignore[arg-type]


def test_the_formats_own_library_reads_every_byte(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", TENSORS)
    read = dict(safetensors.deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
    assert read.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        assert read[name]["dtype"] == DTYPES[array.dtype]
        assert tuple(read[name]["shape"]) == array.shape
        bits = mx.array(list(read[name]["data"]), mx.uint8).view(array.dtype)
        assert mx.array_equal(bits.reshape(array.shape), array)


def test_our_own_reader_finds_no_fault(tmp_path: Path) -> None:
    header = read_header(write(tmp_path / "x.safetensors", TENSORS))
    assert list(header) == list(TENSORS)


def test_the_data_begin_at_a_multiple_of_eight() -> None:
    for length in range(1, 10):
        header = encode_header({"x" * length: ("F32", (2,))}, {})
        assert len(header) % 8 == 0
        assert json.loads(header[8:])["x" * length]["data_offsets"] == [0, 8]


def test_every_dtype_that_can_be_written_has_its_size() -> None:
    assert {DTYPE_BYTES[name] for name in DTYPES.values()} == {1, 2, 4}
    assert all(dtype.size == DTYPE_BYTES[name] for dtype, name in DTYPES.items())


@pytest.mark.parametrize(
    ("name", "array"),
    [("b", mx.zeros((2,))), ("a", mx.zeros((3,))), ("a", mx.zeros((2,), mx.float16))],
)
def test_another_tensor_than_the_next_is_refused(
    tmp_path: Path, name: str, array: mx.array
) -> None:
    with (
        pytest.raises(ValueError, match=r"x\.safetensors: expected the tensor \('a', \('F32', \("),
        SafetensorsWriter(tmp_path / "x.safetensors", described({"a": mx.zeros((2,))})) as writer,
    ):
        writer.write(name, array)


def test_a_file_that_lacks_a_tensor_is_not_done(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match=r"1 tensors were not written"),
        SafetensorsWriter(tmp_path / "x.safetensors", described({"a": mx.zeros((2,))})),
    ):
        pass


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", {})
    with pytest.raises(FileExistsError):
        SafetensorsWriter(path, {})
