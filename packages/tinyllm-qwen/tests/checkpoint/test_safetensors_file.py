"""`read_header` returns every entry correctly, or raises a CheckpointError with the reason."""

import json
import struct
from pathlib import Path

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tinyllm_qwen.checkpoint.safetensors_file import read_header
from tinyllm_qwen.errors import CheckpointError


def safetensors(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> object:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_a_header_describes_the_tensors_that_mlx_wrote(tmp_path: Path) -> None:
    tensors = {
        "half": mx.zeros((3, 5), dtype=mx.float16),
        "codes": mx.zeros((2, 8), dtype=mx.uint32),
        "scalar": mx.array(1.0),
        "empty": mx.zeros((0, 4), dtype=mx.bfloat16),
    }
    path = tmp_path / "model.safetensors"
    mx.save_safetensors(str(path), tensors, metadata={"format": "mlx"})
    header = read_header(path)
    assert {name: entry.shape for name, entry in header.items()} == {
        name: tuple(array.shape) for name, array in tensors.items()
    }
    assert {name: entry.nbytes for name, entry in header.items()} == {
        name: array.nbytes for name, array in tensors.items()
    }
    assert [header[name].dtype for name in tensors] == ["F16", "U32", "F32", "BF16"]


@pytest.mark.parametrize("kept", [0, 7, 8, 40, -1, -100])
def test_a_truncated_file_says_so(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "model.safetensors"
    mx.save_safetensors(str(path), {"x": mx.zeros((100,))})
    path.write_bytes(path.read_bytes()[:kept] if kept else b"")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated.*download it"):
        read_header(path)


def test_a_truncation_error_counts_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(whole := safetensors({"x": tensor()}, bytes(8)))
    path.write_bytes(whole[:-3])
    promised, actual = len(whole), len(whole) - 3
    with pytest.raises(CheckpointError, match=f"promises {promised} bytes, the file has {actual}"):
        read_header(path)


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ([1, 2], b"", "expected a JSON object, got list"),
        (b"{", b"", "not valid JSON"),
        (b'{"x": {}, "x": {}}', b"", "'x' occurs twice"),
        ({"x": 1}, b"", "x: expected a JSON object, got 1"),
        ({"x": tensor(dtype="F8_E5M2")}, bytes(8), "x: dtype 'F8_E5M2' is not supported"),
        ({"x": tensor(dtype=None)}, bytes(8), "x: dtype None"),
        ({"x": tensor(shape=[-2])}, bytes(8), "x: shape"),
        ({"x": tensor(shape=[True, 2])}, bytes(8), "x: shape"),
        ({"x": tensor(shape=[1] * 9)}, bytes(8), "x: shape: expected at most 8"),
        ({"x": tensor(shape=[1 << 62] * 8)}, bytes(8), "x: F32 .* needs an integer of about"),
        ({"x": tensor(shape=[3])}, bytes(8), r"x: F32 \(3,\) needs 12 bytes, .* span 8"),
        ({"x": tensor(offsets=[8, 0])}, bytes(8), "x: data_offsets"),
        ({"x": tensor(offsets=[0])}, bytes(8), "x: data_offsets"),
        ({"x": tensor(offsets=[4, 12])}, bytes(12), "x starts at byte 4, expected 0"),
        ({"x": tensor(), "y": tensor(offsets=[4, 12])}, bytes(12), "y starts at byte 4, expected"),
        ({"x": tensor()}, bytes(9), "1 bytes belong to no tensor"),
    ],
)
def test_an_invalid_header_is_refused_with_the_reason(
    tmp_path: Path, header: object, data: bytes, message: str
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors(header, data))
    with pytest.raises(CheckpointError, match=message):
        read_header(path)


def test_a_git_lfs_pointer_is_recognized(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    with pytest.raises(CheckpointError, match="git lfs pull"):
        read_header(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"absent\.safetensors is missing"):
        read_header(tmp_path / "absent.safetensors")


fields = st.none() | st.booleans() | st.integers(-2, 9) | st.sampled_from(["F32", "U8", "?"])
entries = st.fixed_dictionaries(
    {
        "dtype": fields,
        "shape": fields | st.lists(fields, max_size=3),
        "data_offsets": fields | st.lists(st.integers(0, 9) | fields, max_size=3),
    }
)
headers = st.dictionaries(st.text("xy_", max_size=3), fields | entries, max_size=3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=200)
    | st.builds(
        safetensors,
        st.binary(max_size=60)
        | st.dictionaries(st.text("xy_", max_size=3), fields | entries, max_size=3),
        st.binary(max_size=16),
    )
)
def test_any_bytes_give_a_header_or_a_checkpoint_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    try:
        header = read_header(path)
    except CheckpointError:
        return
    assert sum(entry.nbytes for entry in header.values()) <= len(data)
    assert set(mx.load(str(path))) == set(header)
