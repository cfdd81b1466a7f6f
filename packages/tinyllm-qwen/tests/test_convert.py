"""A conversion writes the results of `mx.quantize`, in little memory, or names the error.

tests/test_convert_parity.py compares conversions with those of mlx-lm.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import pytest
from tinyllm_qwen.checkpoint import partial_folder
from tinyllm_qwen.checkpoint.schema import expected_shapes
from tinyllm_qwen.config.quantization import PackedFormat
from tinyllm_qwen.convert.config import ConversionConfig
from tinyllm_qwen.convert.convert import convert, pack_rows
from tinyllm_qwen.errors import CheckpointError, ConversionError
from tinyllm_qwen.testing.hybrid import hybrid_checkpoint

MakeCheckpoint = Callable[..., Any]
FOUR = PackedFormat(group_size=64, bits=4)
FORMATS = [
    FOUR,
    PackedFormat(group_size=32, bits=5),
    PackedFormat(group_size=32, bits=4, mode="mxfp4"),
    PackedFormat(group_size=32, bits=8, mode="mxfp8"),
    PackedFormat(group_size=16, bits=4, mode="nvfp4"),
]


def tensors(folder: Path) -> dict[str, mx.array]:
    found: dict[str, mx.array] = {}
    for file in folder.glob("*.safetensors"):
        found |= mx.load(str(file))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("packed", FORMATS, ids=lambda packed: f"{packed.mode}-{packed.bits}")
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "qwen3_moe"])
def test_the_codes_equal_mlx(
    random_checkpoint: MakeCheckpoint, tmp_path: Path, family: str, packed: PackedFormat
) -> None:
    made = random_checkpoint(family).fill().save(prefix="")
    convert(made.folder, tmp_path / "out", ConversionConfig(packed=packed))
    written = tensors(tmp_path / "out")
    for name, weight in made.tensors.items():
        path = name.removesuffix(".weight")
        path = path if path == "lm_head" else f"model.{path}"
        if weight.ndim == 1:
            assert mx.array_equal(written.pop(f"model.{name}"), weight)
            continue
        form = (64, 8, "affine")
        if not path.endswith("mlp.gate"):
            form = (packed.group_size, packed.bits, packed.mode)
        if weight.shape[-1] % form[0]:
            assert mx.array_equal(written.pop(f"{path}.weight"), weight)
            continue
        expected = mx.quantize(weight, group_size=form[0], bits=form[1], mode=form[2])
        for part, array in zip(("weight", "scales", "biases"), expected, strict=False):
            assert mx.array_equal(written.pop(f"{path}.{part}"), array)
    assert not written


@pytest.mark.parametrize("packed", FORMATS, ids=lambda packed: f"{packed.mode}-{packed.bits}")
def test_slices_of_rows_are_packed_like_the_whole(packed: PackedFormat) -> None:
    weight = mx.random.normal((3, 700, 512))  # more than one slice, the last one shorter
    parts = pack_rows(weight, packed)
    expected = mx.quantize(weight, group_size=packed.group_size, bits=packed.bits, mode=packed.mode)
    for part, array in zip(parts, expected, strict=True):
        assert mx.array_equal(part, array)


def test_experts_that_the_file_has_fused_come_out_stacked(
    random_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    made = random_checkpoint("qwen3_moe").fill()
    stacks = dict(made.tensors)
    for layer in range(2):
        mlp = f"layers.{layer}.mlp"
        halves = [made.tensors.pop(f"{mlp}.switch_mlp.{p}_proj.weight") for p in ("gate", "up")]
        made.tensors[f"{mlp}.experts.gate_up_proj"] = mx.concatenate(halves, axis=1)
        down = made.tensors.pop(f"{mlp}.switch_mlp.down_proj.weight")
        made.tensors[f"{mlp}.experts.down_proj"] = down
    convert(made.save().folder, tmp_path / "out")
    written = tensors(tmp_path / "out")
    for name, weight in stacks.items():
        key = name if name == "lm_head.weight" else f"model.{name}"
        assert mx.array_equal(written.pop(key), weight)
    assert not written


def test_shards_are_full_and_no_larger_than_asked(
    random_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    made = random_checkpoint().fill().save(shards=3)
    done = convert(made.folder, tmp_path / "out", ConversionConfig(shard_bytes=40_000))
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert files == [
        f"model-{n:05}-of-{len(files):05}.safetensors" for n in range(1, 1 + len(files))
    ]
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    for name, file in index["weight_map"].items():
        assert name in mx.load(str(tmp_path / "out" / file))
    sizes = [sum(t.nbytes for t in mx.load(str(tmp_path / "out" / f)).values()) for f in files]  # type: ignore[misc]
    assert max(sizes) <= 40_000
    assert all(a + b > 40_000 for a, b in itertools.pairwise(sizes))
    assert index["metadata"]["total_size"] == sum(sizes) == done.nbytes


def test_a_cast_shows_in_the_config(random_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    made = random_checkpoint().fill().save()
    done = convert(made.folder, tmp_path / "out", ConversionConfig(dtype=mx.float32))
    written = tensors(tmp_path / "out")
    assert {array.dtype for array in written.values()} == {mx.float32}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == "float32"
    assert (done.bits_per_weight, done.nbytes) == (32, 2 * done.source_bytes)


def test_a_tied_head_is_written_where_mlx_lm_reads_it(tmp_path: Path) -> None:
    source = hybrid_checkpoint(tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    assert config["tie_word_embeddings"]
    config["text_config"]["tie_word_embeddings"] = False  # as transformers 5 writes it
    (source / "config.json").write_text(json.dumps(config))
    convert(source, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["text_config"] == config["text_config"] | {"tie_word_embeddings": True}


def test_the_tokenizer_comes_along_and_no_code_does(
    random_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    made = random_checkpoint().fill().save()
    wanted = ["LICENSE", "chat_template.jinja", "generation_config.json", "tokenizer.json"]
    for name in [*wanted, "modeling.py", "training_args.bin", "extra.safetensors", "notes.txt"]:
        (made.folder / name).write_text(name)
    (made.folder / "vocab.json").mkdir()  # a folder is not copied
    done = convert(made.folder, tmp_path / "out")
    assert sorted(done.copied) == wanted
    own = ["config.json", "model.safetensors", "model.safetensors.index.json"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(wanted + own)
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "tokenizer.json"


def test_progress_ends_at_the_size_of_the_source(
    random_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    made = random_checkpoint().fill().save()
    calls: list[tuple[int, int]] = []
    done = convert(made.folder, tmp_path / "out", progress=lambda *call: calls.append(call))
    assert calls == sorted(calls)
    assert len(calls) == len(made.tensors)
    assert calls[-1] == (done.source_bytes, done.source_bytes)


def test_memory_is_bounded_by_the_largest_tensor(
    random_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    made = random_checkpoint(
        "qwen3_moe",
        hidden_size=512,
        num_experts=16,
        moe_intermediate_size=256,
        num_hidden_layers=6,
        vocab_size=512,
    )
    for name, shape in expected_shapes(made.config).items():
        if "switch_mlp" in name:  # expert by expert, as Qwen publishes them
            parts = [name.replace("switch_mlp", f"experts.{expert}") for expert in range(16)]
            made.tensors |= {part: mx.zeros(shape[1:], mx.bfloat16) for part in parts}
        else:
            made.tensors[name] = mx.zeros(shape, mx.bfloat16)
    total = sum(tensor.nbytes for tensor in made.save().tensors.values())
    largest = 16 * 256 * 512 * 2
    script = """
import re
import sys
from pathlib import Path
import mlx.core as mx
from tinyllm_qwen import ConversionConfig, convert
from tinyllm_qwen.checkpoint.schema import expected_shapes
from tinyllm_qwen.config.quantization import PackedFormat

def resident():
    status = Path("/proc/self/status")  # where it is, as on Linux
    if not status.exists():
        return 0
    return 1024 * int(re.search(r"VmHWM:\\s*(\\d+)", status.read_text())[1])

mx.eval(mx.quantize(mx.ones((64, 64))))
before = resident()
for bits, mode in ((4, "affine"), (8, "mxfp8")):
    packed = PackedFormat(group_size=32, bits=bits, mode=mode)
    convert(sys.argv[1], Path(sys.argv[2]) / mode, ConversionConfig(packed=packed))
print(mx.get_peak_memory(), resident() - before)
"""
    command = [sys.executable, "-c", script, str(made.folder), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, resident = map(int, done.stdout.split())
    # The experts of a stack and the stack itself, a batch of small tensors, one slice of rows.
    bound = 3 * largest + (8 << 20) + (16 << 20)
    assert largest < peak < bound < total
    assert resident < bound + (16 << 20)


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_a_disk_without_room_is_found_first(
    random_checkpoint: MakeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = random_checkpoint().fill().save()
    monkeypatch.setattr(partial_folder.shutil, "disk_usage", lambda path: Usage(0, 0, 10**6))  # type: ignore[attr-defined]
    with pytest.raises(ConversionError, match=r"needs [\d.]+ MB, its disk has 1\.0 MB left: free"):
        convert(made.folder, tmp_path / "deep" / "out")
    assert not (tmp_path / "deep").exists()


def test_too_little_memory_is_an_error(
    random_checkpoint: MakeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = random_checkpoint().fill().save()
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    with pytest.raises(
        ConversionError, match=r"largest tensor needs .* of memory, this machine has 10\.0 kB"
    ):
        convert(made.folder, tmp_path / "out")


def test_a_packed_checkpoint_is_refused(random_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    made = random_checkpoint(quantization={"group_size": 64, "bits": 4}).fill().save()
    with pytest.raises(ConversionError, match=r"quantized already \(affine, 4 bits\): .* original"):
        convert(made.folder, tmp_path / "out", ConversionConfig(packed=FOUR))
    assert not (tmp_path / "out").exists()


def test_an_existing_target_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").touch()
    with pytest.raises(ConversionError, match="exists already"):
        convert(tmp_path / "no such folder", tmp_path / "out")


def test_a_failure_in_the_middle_leaves_nothing(
    random_checkpoint: MakeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = random_checkpoint().fill().save()
    before = sorted(tmp_path.iterdir())

    def interrupt(done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(made.folder, tmp_path / "out", progress=interrupt)
    assert sorted(tmp_path.iterdir()) == before


def test_damaged_weights_leave_nothing(random_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    made = random_checkpoint().fill()
    del made.tensors["norm.weight"]
    made.save()
    with pytest.raises(CheckpointError, match=r"missing \(1\):\n *norm\.weight"):
        convert(made.folder, tmp_path / "out")
    shutil.rmtree(made.folder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("packed", [None, *FORMATS])
def test_a_weight_beyond_float16_is_refused(
    random_checkpoint: MakeCheckpoint, tmp_path: Path, packed: PackedFormat | None
) -> None:
    made = random_checkpoint().fill()
    name = "layers.1.self_attn.q_proj.weight"
    made.tensors[name] = mx.zeros(made.tensors[name].shape).at[3, 5].add(-1e6)
    config = ConversionConfig(packed=packed, dtype=mx.float16)
    message = rf"model\.{name}: expected weights from -65504 to 65504 .*use bfloat16"
    with pytest.raises(ConversionError, match=message):
        convert(made.save().folder, tmp_path / "out", config)
    assert not (tmp_path / "out").exists()
    convert(made.folder, tmp_path / "out", ConversionConfig(packed=packed, dtype=mx.bfloat16))


def test_a_pattern_without_a_match_is_refused(
    random_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    made = random_checkpoint().fill().save()
    with pytest.raises(ValueError, match=r"skip: 'lm_head' matches no matrix"):
        convert(made.folder, tmp_path / "out", ConversionConfig(packed=FOUR, skip=("lm_head",)))
    with pytest.raises(ValueError, match="skip leaves none of"):
        convert(made.folder, tmp_path / "out", ConversionConfig(packed=FOUR, skip=("*",)))


def test_a_format_that_fits_no_matrix_is_refused(
    random_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    made = random_checkpoint(intermediate_size=96, head_dim=16).fill().save()
    config = ConversionConfig(packed=PackedFormat(group_size=128, bits=4))
    with pytest.raises(ValueError, match=r"groups of 128; their lengths are \[64, 96\]"):
        convert(made.folder, tmp_path / "out", config)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"packed": PackedFormat(group_size=64, bits=7)}, "bits: expected one of"),
        ({"dtype": mx.int8}, "dtype: expected float32, float16 or bfloat16, got"),
        ({"skip": ("lm_head",)}, "skip: expected a format beside it"),
        ({"shard_bytes": 0}, "shard_bytes: expected at least 1, got 0"),
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ConversionConfig(**wrong)
