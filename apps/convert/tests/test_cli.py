"""The command line: what is asked for is made and told, what is wrong is one line."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest
from tinyllm_convert import cli
from tinyllm_convert.errors import UsageError, one_line
from tinyllm_convert.options import Options
from tinyllm_convert.run import report
from tinyllm_qwen import Conversion, QwenConfig
from tinyllm_qwen.checkpoint.schema import expected_shapes
from tinyllm_qwen.config.quantization import PackedFormat

PROCESS = [sys.executable, "-c", "from tinyllm_convert.cli import main; exit(main())"]
CONFIG: dict[str, object] = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkpoint of random weights; its tokenizer is for show."""
    return make(tmp_path / "source")


def make(folder: Path, **fields: object) -> Path:
    folder.mkdir()
    config = CONFIG | fields
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    shapes = expected_shapes(QwenConfig.from_hf(config))
    tensors = {
        f"{'' if name.startswith('lm_head') else 'model.'}{name}": mx.random.normal(shape)
        for name, shape in shapes.items()
    }
    tensors = {name: tensor.astype(mx.bfloat16) for name, tensor in tensors.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    return folder


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of `convert` with these arguments, in this process."""
    monkeypatch.setattr(sys, "argv", ["convert", *map(str, arguments)])
    monkeypatch.setattr(cli, "_clean_up_when_told_to_end", lambda: None)
    code = cli.main()
    out, err = capsys.readouterr()
    return code, out, err


def test_it_says_what_it_made_and_how_to_use_it(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = tmp_path / "a model"
    code, out, err = run(monkeypatch, capsys, source, target, "--bits", 4)
    assert (code, err) == (0, "")
    made, left, chat = out.splitlines()
    config = json.loads((target / "config.json").read_text())
    assert config["quantization"] == {"group_size": 64, "bits": 4, "mode": "affine"}
    size = sum(a.nbytes for a in mx.load(str(target / "model.safetensors")).values())
    assert f"{size / 1e6:.1f} MB now" in made
    assert "(affine, 4 bits, groups of 64)" in made
    # 96 columns are no groups of 64.
    assert left.startswith("left as they were: 2 matrices (model.layers.0.mlp.down_proj, ")
    assert chat == f"uv run chat --model '{target}'"


def test_every_option_reaches_the_conversion_config(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = "--bits 3 --group-size 32 --mode affine --dtype float16 --shard-size 0.00002"
    skip = ["--skip", "lm_head", "--skip", "*.v_proj"]
    code, _, err = run(monkeypatch, capsys, source, tmp_path / "out", *options.split(), *skip)
    assert (code, err) == (0, "")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization"] == {"group_size": 32, "bits": 3, "mode": "affine"}
    assert config["torch_dtype"] == "float16"
    files = list((tmp_path / "out").glob("model-*.safetensors"))
    assert len(files) > 1
    arrays = {name: array for file in files for name, array in mx.load(str(file)).items()}
    bare = {name for name, array in arrays.items() if array.ndim > 1 and array.dtype == mx.float16}
    bare = {name.removesuffix(".weight") for name in bare if name.endswith(".weight")}
    assert bare == {"lm_head", *(f"model.layers.{n}.self_attn.v_proj" for n in range(2))}


@pytest.mark.parametrize(
    ("options", "packed"),
    [
        ({}, None),
        ({"bits": 4}, PackedFormat(group_size=64, bits=4)),
        ({"bits": 2, "group_size": 128}, PackedFormat(group_size=128, bits=2)),
        ({"mode": "mxfp4"}, PackedFormat(group_size=32, bits=4, mode="mxfp4")),
        ({"mode": "mxfp8", "bits": 8}, PackedFormat(group_size=32, bits=8, mode="mxfp8")),
        ({"mode": "nvfp4", "group_size": 16}, PackedFormat(group_size=16, bits=4, mode="nvfp4")),
    ],
)
def test_a_mode_brings_bits_and_group_with_it(
    options: dict[str, object], packed: PackedFormat | None
) -> None:
    assert Options(**options).conversion_config().packed == packed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--bits 7", "--bits: expected one of 2, 3, 4, 5, 6, 8, got 7"),
        ("--bits 4 --group-size 48", "--group-size: expected one of 32, 64, 128, got 48"),
        ("--bits 8 --mode mxfp4", "--bits: mxfp4 means 4, got 8"),
        ("--group-size 64 --mode mxfp8", "--group-size: mxfp8 means 32, got 64"),
        ("--mode int4", "--mode: expected one of affine, mxfp4, mxfp8, nvfp4, got int4"),
        ("--mode affine", "--mode affine: expected --bits beside it"),
        ("--group-size 64", "--group-size 64: expected --bits beside it"),
        ("--skip lm_head", "--skip: expected --bits or --mode beside it"),
        ("--dtype int8", "--dtype: expected one of float32, float16, bfloat16, got int8"),
        ("--shard-size 0", "--shard-size: expected gigabytes above 0, got 0"),
        ("--shard-size nan", "--shard-size: expected gigabytes above 0, got nan"),
        ("--shard-size inf", "--shard-size: expected gigabytes above 0, got inf"),
        ("--bits four", "invalid value for '--bits'"),
        ("--frob", "No such option: --frob"),
        ("third", "unexpected extra argument"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(
    options: str,
    message: str,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(monkeypatch, capsys, source, tmp_path / "out", *options.split())
    assert (code, out) == (cli.USAGE, "")
    assert err.startswith("convert: ")
    assert err.endswith(" (see convert --help)\n")
    assert err.count("\n") == 1
    assert message.lower() in err.lower()
    assert not (tmp_path / "out").exists()


def test_two_folders_are_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(monkeypatch, capsys, "source")
    assert (code, err) == (2, "convert: expected a SOURCE and a TARGET (see convert --help)\n")


@pytest.mark.parametrize("case", ["target", "missing", "packed", "family", "revision"])
def test_what_cannot_be_converted_is_one_line_and_code_1(
    case: str,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target, place, more, message = tmp_path / "out", source, [], ""
    if case == "target":
        target, message = source, "exists already: name a new folder"
    elif case == "missing":
        place, message = tmp_path / "nothing", "is neither a folder here nor"
    elif case == "packed":
        place = make(tmp_path / "packed", quantization={"group_size": 64, "bits": 4})
        message = "is quantized already (affine, 4 bits): `chat` runs it as it is"
    elif case == "family":
        (source / "config.json").write_text('{"model_type": "ll\\u001b[1mama"}')
        message = "model_type: expected one of qwen2"
    else:
        more, message = ["--revision", "main"], "only repositories on the Hub have revisions"
    code, out, err = run(monkeypatch, capsys, place, target, "--bits", 4, *more)
    assert (code, out) == (cli.FAILURE, "")
    assert err.startswith("convert: ")
    assert err.count("\n") == 1
    assert message in err
    assert err[:-1].isprintable()
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_without_tokenizer_is_noticed(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (source / "tokenizer.json").unlink()
    code, out, err = run(monkeypatch, capsys, source, tmp_path / "out")
    assert code == 0
    assert "uv run chat" not in out
    assert "(not quantized)" in out
    assert err == (
        f"convert: {source} has no tokenizer.json, without which chat cannot use "
        f"{tmp_path / 'out'}\n"
    )


def test_large_sizes_are_told_in_gigabytes(tmp_path: Path) -> None:
    done = Conversion(
        folder=tmp_path,
        source_bytes=8_044_982_272,
        nbytes=2_263_022_592,
        bits_per_weight=4.5006,
        unquantized=(),
        copied=(),
    )
    assert report(done, "x", PackedFormat(group_size=64, bits=4), 61.23) == [
        "x: 4.50 bits per weight (affine, 4 bits, groups of 64), 8.04 GB before, 2.26 GB now, "
        "61.2 s"
    ]


def test_one_line_cannot_move_the_cursor() -> None:
    assert one_line(UsageError("a:\n  b\n\x1b[2Jc")) == "a: b; \N{REPLACEMENT CHARACTER}[2Jc"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Children hear Ctrl-C, also where a shell that runs the tests in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, "convert: interrupted\n"), (signal.SIGTERM, 143, "")],
)
def test_ctrl_c_and_kill_leave_nothing(
    number: signal.Signals, code: int, word: str, tmp_path: Path, interruptible: None
) -> None:
    # Float codes of 5 million numbers take MLX a second on a CPU.
    source = make(tmp_path / "source", vocab_size=40_000)
    command = [*PROCESS, str(source), str(tmp_path / "out"), "--mode", "nvfp4"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".tinyllm-partial-*/model.safetensors")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (code, word)
    assert list(tmp_path.iterdir()) == [source]


def test_help_and_version_come_without_mlx() -> None:
    script = (
        "import sys; sys.argv = ['convert', sys.argv[1]]\n"
        "from tinyllm_convert.cli import main\n"
        "code = main(); assert 'mlx.core' not in sys.modules; exit(code)"
    )
    for option, word in (("--help", "--group-size"), ("--version", "convert 0.1.0")):
        command = [sys.executable, "-c", script, option]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert word in done.stdout
