"""The command line: options, the report, errors, signals and help."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tinyllm_cli.messages import FAILURE, USAGE
from tinyllm_convert import cli
from tinyllm_convert.conversion import conversion_config, report
from tinyllm_convert.options import Options
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
    """A checkpoint of random weights with a placeholder of a tokenizer."""
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
    """Run `convert` in this process, and return its exit code, stdout and stderr."""
    monkeypatch.setattr(sys, "argv", ["convert", *map(str, arguments)])
    monkeypatch.setattr(cli, "exit_on_signals", lambda: None)
    code = cli.main()
    out, err = capsys.readouterr()
    return code, out, err


def test_the_report_names_format_size_and_next_command(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = tmp_path / "a model"
    code, out, err = run(monkeypatch, capsys, source, target, "--bits", 4)
    assert (code, err) == (0, "")
    summary, unquantized, chat = out.splitlines()
    config = json.loads((target / "config.json").read_text())
    assert config["quantization"] == {"group_size": 64, "bits": 4, "mode": "affine"}
    arrays = mx.load(str(target / "model.safetensors"))
    assert isinstance(arrays, dict)
    size = sum(array.nbytes for array in arrays.values())
    assert f"{size / 1e6:.1f} MB now" in summary
    assert "(affine, 4 bits, groups of 64)" in summary
    # 96 columns do not divide into groups of 64.
    assert unquantized.startswith("not quantized: 2 matrices (model.layers.0.mlp.down_proj, ")
    assert chat == f"uv run chat --model '{target}'"


def test_the_next_command_is_that_of_the_installation(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["tinyllm convert", str(source), str(tmp_path / "target")])
    assert cli.main("tinyllm convert") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("tinyllm chat --model ")


@pytest.mark.parametrize("prefix", ["--", "--q-"])  # --q-bits and so on, as in mlx_lm.convert
def test_every_option_has_its_effect(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    prefix: str,
) -> None:
    options = f"{prefix}bits 3 {prefix}group-size 32 {prefix}mode affine"
    options += " --dtype float16 --shard-size 0.00002"
    skip = ["--skip", "lm_head", "--skip", "*.v_proj"]
    code, _, err = run(monkeypatch, capsys, source, tmp_path / "out", *options.split(), *skip)
    assert (code, err) == (0, "")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization"] == {"group_size": 32, "bits": 3, "mode": "affine"}
    assert config["torch_dtype"] == "float16"
    files = list((tmp_path / "out").glob("model-*.safetensors"))
    assert len(files) > 1
    arrays = {name: array for file in files for name, array in mx.load(str(file)).items()}
    unpacked = {
        name for name, array in arrays.items() if array.ndim > 1 and array.dtype == mx.float16
    }
    unpacked = {name.removesuffix(".weight") for name in unpacked if name.endswith(".weight")}
    assert unpacked == {"lm_head", *(f"model.layers.{n}.self_attn.v_proj" for n in range(2))}


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
def test_a_float_mode_fixes_bits_and_group_size(
    options: dict[str, Any], packed: PackedFormat | None
) -> None:
    assert conversion_config(Options(source="a", target="b", **options)).packed == packed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--bits 7", "--bits: expected one of 2, 3, 4, 5, 6, 8, got 7"),
        ("--bits 4 --group-size 48", "--group-size: expected one of 32, 64, 128, got 48"),
        ("--bits 8 --mode mxfp4", "--bits: expected 4, the only value of mxfp4, got 8"),
        (
            "--group-size 64 --mode mxfp8",
            "--group-size: expected 32, the only value of mxfp8, got 64",
        ),
        ("--mode int4", "--mode: expected one of affine, mxfp4, mxfp8, nvfp4, got int4"),
        ("--mode affine", "--mode affine: expected --bits as well"),
        ("--group-size 64", "--group-size 64: expected --bits as well"),
        ("--skip lm_head", "--skip: expected --bits or --mode as well"),
        ("--dtype int8", "--dtype: expected one of float32, float16, bfloat16, got int8"),
        ("--shard-size 0", "--shard-size: expected a finite number of gigabytes above 0, got 0"),
        (
            "--shard-size nan",
            "expected a finite number of gigabytes above 0, got nan",
        ),
        (
            "--shard-size inf",
            "expected a finite number of gigabytes above 0, got inf",
        ),
        ("--bits four", "invalid value for '--bits'"),
        ("--frob", "No such option: --frob"),
        ("third", "unexpected extra argument"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(
    options: str,
    message: str,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(monkeypatch, capsys, source, tmp_path / "out", *options.split())
    assert (code, out) == (USAGE, "")
    assert err.startswith("convert: ")
    assert err.endswith(" (see convert --help)\n")
    assert err.count("\n") == 1
    assert message.lower() in err.lower()
    assert not (tmp_path / "out").exists()


def test_source_and_target_are_required(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(monkeypatch, capsys, "source")
    assert (code, err) == (2, "convert: Missing argument 'TARGET'. (see convert --help)\n")


@pytest.mark.parametrize("case", ["target", "missing", "packed", "family", "revision"])
def test_a_failed_conversion_is_one_line_and_exit_code_1(
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
    assert (code, out) == (FAILURE, "")
    assert err.startswith("convert: ")
    assert err.count("\n") == 1
    assert message in err
    assert err[:-1].isprintable()
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_without_tokenizer_gives_a_notice(
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
        f"convert: {source} has no tokenizer.json, so chat cannot use {tmp_path / 'out'}\n"
    )


def test_large_sizes_are_reported_in_gigabytes(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [(signal.SIGINT, 130, "convert: interrupted\n"), (signal.SIGTERM, 143, "")],
)
def test_ctrl_c_and_sigterm_remove_the_partial_target(
    number: signal.Signals, code: int, message: str, tmp_path: Path
) -> None:
    # Packing 5 million floating-point codes takes MLX a second on a CPU.
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
    assert (process.returncode, err) == (code, message)
    assert list(tmp_path.iterdir()) == [source]


def test_help_and_version_do_not_import_mlx() -> None:
    script = (
        "import sys; sys.argv = ['convert', sys.argv[1]]\n"
        "from tinyllm_convert.cli import main\n"
        "code = main(); assert 'mlx.core' not in sys.modules; exit(code)"
    )
    for option, word in (("--help", "--group-size"), ("--version", "convert 0.1.0")):
        command = [sys.executable, "-c", script, option]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert word in done.stdout
