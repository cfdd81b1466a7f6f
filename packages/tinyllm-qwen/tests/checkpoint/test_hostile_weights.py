"""Hostile safetensors files and indexes: each is one clear error, in bounded time and memory."""

import json
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tinyllm_qwen.checkpoint.safetensors_file import MAX_HEADER_BYTES, read_header
from tinyllm_qwen.checkpoint.shards import INDEX, SINGLE, find_shards
from tinyllm_qwen.checkpoint.weights import load_weights
from tinyllm_qwen.errors import CheckpointError

MakeCheckpoint = Callable[..., Any]


def entry(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def write(folder: Path, header: bytes | dict[str, object], data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / SINGLE
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"\x80\x04\x95", b"", "not valid JSON"),
        (b'{"x":' * 1_000_000, b"", "values|nested too deeply"),
        (b'{"x":' + b"[" * 900_000, b"", "nested too deeply"),
        (b'{"x": ' + b"9" * 100_000 + b"}", b"", "not valid JSON"),
        (b'{"x":[' + b"[]," * 2_000_000 + b"[]]}", b"", "at most 1000000 values"),
        (b'{"__metadata__": {"a": 1}}', b"", "__metadata__: expected texts"),
        (b'{"__metadata__": [1]}', b"", "__metadata__: expected texts"),
        ({"x": entry([1 << 32, 1 << 32], 0, 0)}, b"", "needs .* digits|needs"),
        ({"x": entry([(1 << 63) - 1, 4], 0, 4)}, b"1234", "needs"),
        ({"x": entry([1 << 64], 0, 4)}, b"1234", "shape"),
        ({"x": entry([1], 0, 10**30)}, b"1234", "data_offsets"),
        ({"x": entry([2], 0, 8), "y": entry([2], 4, 12)}, bytes(12), "starts at byte 4"),
        ({"x": entry([1], 0, 4), "y": entry([1], 8, 12)}, bytes(12), "starts at byte 8"),
        ({"x": entry([1], 0, 4)}, bytes(400), "396 bytes belong to no tensor"),
        ({"x": entry([1], 0, 4, "F8_E4M3")}, bytes(4), "dtype 'F8_E4M3' is not supported"),
        ({"\x1b]0;x\x07": entry([1], 0, 4)}, bytes(4), r"'\\x1b.*printable"),
        ({"\ud800": entry([1], 0, 4)}, bytes(4), "half of a surrogate pair"),
    ],
    ids=range(17),
)
def test_a_hostile_header_is_refused(
    tmp_path: Path, header: bytes | dict[str, object], data: bytes, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        read_header(write(tmp_path, header, data))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_a_header_of_absurd_size_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / SINGLE
    with path.open("wb") as file:  # a sparse file: 2.1 GB that occupy no disk
        file.write(struct.pack("<Q", 2_000_000_000))
        file.truncate(2_100_000_000)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=f"at most {MAX_HEADER_BYTES}"):
        read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_a_header_of_millions_of_values_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    size = 30_000_000
    path = write(tmp_path, b'{"x":[' + b"[]," * (size // 3) + b"[]]}")
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="values"):
        read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * size


def test_zero_sized_and_scalar_tensors_and_thousands_of_them_are_no_error(tmp_path: Path) -> None:
    header: dict[str, object] = {"none": entry([0, 1 << 40], 0, 0), "one": entry([], 0, 4)}
    header |= {f"t{i}": entry([1], 4 + 4 * i, 8 + 4 * i) for i in range(20_000)}
    found = read_header(write(tmp_path, header, bytes(80_004)))
    assert len(found) == 20_002
    assert (found["none"].nbytes, found["one"].shape) == (0, ())


@pytest.mark.parametrize("name", ["none", "one"])
def test_a_tensor_of_no_use_to_the_model_is_named(
    random_checkpoint: MakeCheckpoint, name: str
) -> None:
    made = random_checkpoint().fill()
    made.tensors[name] = mx.zeros((0, 4)) if name == "none" else mx.array(1.0)
    with pytest.raises(CheckpointError, match=rf"unexpected \(1\):\n    {name}"):
        load_weights(made.save(prefix="").folder, made.config)


def test_every_way_to_cut_a_file_short_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, {"a": entry([2], 0, 8), "b": entry([], 8, 12)}, bytes(12))
    whole = path.read_bytes()
    read_header(path)
    for kept in range(len(whole)):
        path.write_bytes(whole[:kept])
        with pytest.raises(CheckpointError, match="truncated"):
            read_header(path)


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd.safetensors",
        "../model.safetensors",
        "..\\model.safetensors",
        "C:model.safetensors",
        "a/b.safetensors",
        "model.safetensors\x00",
        "\x1b[2J.safetensors",
        "pytorch_model.bin",
        "",
        None,
        ["x.safetensors"],
    ],
)
def test_an_index_names_files_of_its_own_folder_alone(tmp_path: Path, name: object) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(CheckpointError, match="x: expected the name of a"):
        find_shards(tmp_path)


def test_a_name_too_long_for_the_system_is_an_error_of_its_own(tmp_path: Path) -> None:
    name = "x" * 5000 + ".safetensors"
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(CheckpointError, match="cannot be read"):
        [read_header(path) for path in find_shards(tmp_path)]


def test_an_index_that_says_where_a_tensor_is_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text('{"weight_map": {"x": "a.safetensors", "x": "b.safetensors"}}')
    with pytest.raises(CheckpointError, match="'x' occurs twice"):
        find_shards(tmp_path)


def test_an_index_of_a_hundred_thousand_files_is_refused(tmp_path: Path) -> None:
    names = {f"t{i}": f"{i}.safetensors" for i in range(100_000)}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": names}))
    with pytest.raises(CheckpointError, match="at most 10000 shards, got 100000"):
        find_shards(tmp_path)


def test_an_index_that_forgets_a_shard_leaves_tensors_missing(
    random_checkpoint: MakeCheckpoint,
) -> None:
    made = random_checkpoint().fill().save(shards=3)
    index = made.folder / INDEX
    places = json.loads(index.read_text())["weight_map"]
    kept = {name: file for name, file in places.items() if "00002" not in file}
    index.write_text(json.dumps({"weight_map": kept}))
    with pytest.raises(CheckpointError, match="missing"):
        load_weights(made.folder, made.config)


def test_the_index_of_another_model_names_shards_that_are_not_there(
    random_checkpoint: MakeCheckpoint,
) -> None:
    made = random_checkpoint().fill().save(shards=3)
    names = {"model.norm.weight": "model-00001-of-00008.safetensors"}
    (made.folder / INDEX).write_text(json.dumps({"weight_map": names}))
    (made.folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"1 of 1 shards are missing \(model-00001-of-00008"):
        load_weights(made.folder, made.config)


@pytest.mark.parametrize("index", [None, ["model-00001-of-00008.safetensors"]])
def test_a_complete_set_of_shards_needs_no_index(
    random_checkpoint: MakeCheckpoint, index: list[str] | None
) -> None:
    made = random_checkpoint().fill().save(shards=3)
    (made.folder / INDEX).unlink()
    if index is not None:
        (made.folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys("a", index[0])}))
    weights = load_weights(made.folder, made.config)
    assert all(mx.array_equal(weights[name], tensor) for name, tensor in made.tensors.items())  # type: ignore[arg-type]
    (made.folder / "model-00003-of-00003.safetensors").rename(made.folder / "model-3.safetensors")
    with pytest.raises(CheckpointError, match="download"):
        load_weights(made.folder, made.config)


def test_the_tensor_map_of_an_index_is_not_used(random_checkpoint: MakeCheckpoint) -> None:
    made = random_checkpoint().fill().save(shards=2)
    index = made.folder / INDEX
    places = json.loads(index.read_text())["weight_map"]
    files = sorted(set(places.values()))
    index.write_text(json.dumps({"weight_map": dict(zip("ab", files, strict=True))}))
    weights = load_weights(made.folder, made.config)
    assert all(mx.array_equal(weights[name], tensor) for name, tensor in made.tensors.items())  # type: ignore[arg-type]


def test_a_tensor_in_two_shards_is_refused(random_checkpoint: MakeCheckpoint) -> None:
    made = random_checkpoint().fill().save(shards=2)
    mx.save_safetensors(
        str(made.folder / "extra.safetensors"), {"model.norm.weight": mx.zeros((64,))}
    )
    index = made.folder / INDEX
    places = json.loads(index.read_text())["weight_map"] | {"x": "extra.safetensors"}
    index.write_text(json.dumps({"weight_map": places}))
    with pytest.raises(CheckpointError, match=r"norm\.weight occurs twice"):
        load_weights(made.folder, made.config)


class Canary:
    """An object that leaves a trace if it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    "name",
    [
        "pytorch_model.bin",
        "consolidated.00.pth",
        "model.pt",
        "weights.npz",
        "weights.pkl",
        "model.ckpt",
        "model.gguf",
        SINGLE,
    ],
)
def test_pickles_are_refused_and_not_run(random_checkpoint: MakeCheckpoint, name: str) -> None:
    made = random_checkpoint()
    trace = made.folder / "trace"
    poison = pickle.dumps(Canary(trace))
    path = made.folder / name
    if name.endswith(("bin", "pth", "pt")):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", poison)
    elif name.endswith("npz"):
        np.savez(path, x=np.array([Canary(trace)], dtype=object))
    elif name.endswith("gguf"):
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 1))
    else:
        path.write_bytes(poison)
    expected = "only safetensors are read" if name != SINGLE else "not a safetensors file|truncated"
    with pytest.raises(CheckpointError, match=expected):
        load_weights(made.folder, made.config)
    assert not trace.exists()


@pytest.mark.parametrize(
    "magic", [b"PK\x03\x04", b"GGUF\x03\x00\x00\x00", b"\x80\x04\x95", b"\x93N"]
)
def test_other_formats_under_the_name_of_a_safetensors_file_are_refused(
    random_checkpoint: MakeCheckpoint, magic: bytes
) -> None:
    made = random_checkpoint()
    (made.folder / SINGLE).write_bytes(magic + bytes(range(1, 100)))
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        load_weights(made.folder, made.config)
