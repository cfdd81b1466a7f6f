"""Command line of `bench`: output, error messages and exit codes."""

import importlib.util
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version

import pytest
from tinyllm_bench import cli
from tinyllm_bench.cases.qwen_runner import QwenRunner
from tinyllm_bench.opsets import all_opsets
from tinyllm_bench.settings import Settings
from tinyllm_cli.messages import UsageError

Bench = Callable[[str], tuple[int, str, str]]
QUICK_MODEL = "--seconds 0.0001 --prompt-tokens 4 --decode-tokens 2"
QUICK = f"{QUICK_MODEL} --batch 2"


def test_a_whole_run_prints_tables(bench: Bench) -> None:
    code, out, err = bench(QUICK)
    assert (code, err) == (0, "")
    assert "tokens/s" in out
    for name in ("linear", "attention", "quantize", "prefill, 4 tokens", "decode, after 4 tokens"):
        assert name in out


def test_a_command_measures_one_part(bench: Bench) -> None:
    for part, has_model in (("ops --op swiglu", False), ("model", True)):
        options = QUICK.replace("--decode-tokens 2 ", "").replace(" --batch 2", "")
        code, out, _ = bench(f"{part} {options} --ops mlx --json")
        rows = json.loads(out)["results"]
        assert code == 0
        assert {row["what"] == "model" for row in rows} == {has_model}


@pytest.mark.parametrize("option", ["--shape qwen3-0.6b", "--shape pico", "--json", "--only x"])
def test_options_before_a_command_are_refused(bench: Bench, option: str) -> None:
    code, _, err = bench(f"{option} engine")  # pico is the default
    message = f"{option.split(maxsplit=1)[0]}: expected after `engine`, got it before"
    assert (code, err) == (2, f"bench: {message} (see bench --help)\n")


@pytest.mark.parametrize("command", ["", "ops", "model", "engine", "serve"])
def test_every_command_has_help(bench: Bench, command: str) -> None:
    code, out, err = bench(f"{command} --help")
    assert (code, err) == (0, "")
    assert "--shape NAME" in out
    assert "[default:" in out


def test_the_version_is_printed(bench: Bench) -> None:
    assert bench("--version") == (0, f"bench {version('tinyllm-bench')}\n", "")


def test_json_is_one_document_with_everything(bench: Bench) -> None:
    code, out, err = bench(f"{QUICK_MODEL} --json --only model --context 6")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert set(document) == {
        "format",
        "version",
        "machine",
        "ceilings",
        "settings",
        "model",
        "results",
        "failures",
        "notices",
        "interrupted",
    }
    assert document["format"] == "tinyllm-bench/1"
    assert set(document["machine"]) >= {"cpu", "cores", "isa", "mlx", "device", "memory"}
    assert document["settings"]["prompt_tokens"] == 4
    assert document["settings"]["shape"] == "pico"
    assert document["model"]["bytes"] == 5_242_880 * 5 // 8 + 4 * 4_096
    assert not document["interrupted"]
    cases = [(row["what"], row["regime"], row["by"]) for row in document["results"]]
    names = [ops.name for ops in all_opsets()]
    assert cases == [("model", regime, by) for regime in ("prefill", "decode") for by in names]
    for row in document["results"]:
        median = row["median"]
        assert row["samples"]
        assert row["quartiles"][0] <= median <= row["quartiles"][1]
        assert row["tokens_per_second"] == pytest.approx(row["tokens"] / median)
        assert row["gbps"] == pytest.approx(row["bytes"] / median / 1e9)
        share = row["gbps"] / document["ceilings"]["read_gbps"]
        assert row["share_of_read"] == pytest.approx(share)
        limit = max(share, row["share_of_compute"])
        assert row["share_of_limit"] == pytest.approx(limit)


def test_operations_and_opsets_can_be_chosen(bench: Bench) -> None:
    code, out, _ = bench(f"{QUICK} --json --op swiglu --op rope --ops mlx")
    assert code == 0
    rows = json.loads(out)["results"]
    assert {(row["what"], row["by"]) for row in rows} == {("swiglu", "mlx"), ("rope", "mlx")}
    assert {row["relative_to_reference"] for row in rows} == {None}


def test_a_checkpoint_can_be_measured(bench: Bench) -> None:
    code, out, _ = bench(f"{QUICK_MODEL} --json --only model --ops mlx --model pico")
    assert code == 0
    assert json.loads(out)["model"]["weights"] == "4-bit affine, group 64, float32"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            "--shape gpt",
            "--shape: expected one of pico, qwen3-0.6b, qwen3-4b, qwen3-30b-a3b, qwen2.5-0.5b",
        ),
        ("--ops cuda", "--ops: expected one of reference, mlx"),
        ("--op matmul", "--op: expected one of linear, "),
        ("--only all", "--only: expected one of ops, model, got all"),
        ("--bits 7", "--bits"),
        ("--group-size 100", "--group-size"),
        ("--mode int", "--mode"),
        ("--dtype int8", "--dtype: expected one of auto, float32, float16, bfloat16, got int8"),
        (
            "--bits 16 --dtype float32",
            "--dtype: expected a type of 16 bits",
        ),
        ("--prompt-tokens 0", "--prompt-tokens: expected 1 to 1,000,000, got 0"),
        ("--prompt-tokens 4000", "at most 2048 tokens, the context of pico, got 4032"),
        ("--context -1", "--context"),
        ("--decode-tokens 0", "--decode-tokens"),
        ("--kv-bits 3", "--kv-bits: expected 8 or 4, got 3"),
        ("--kv-bits 8 --op swiglu", "--kv-bits: is for the model"),
        ("--kv-bits 8 --peers", "--kv-bits: is not for --peers"),
        ("--batch 0", "--batch"),
        ("--seconds 0", "--seconds: expected a finite number above 0, got 0.0"),
        ("--seconds nan", "--seconds"),
        ("--model pico --bits 4", "--bits: is for random weights"),
        ("--model pico --shape qwen3-4b", "--shape: makes a model of its own"),
        ("--model pico --shape pico", "--shape: makes a model of its own"),
        ("--bits 16 --mode mxfp4", "--mode: expected none with --bits 16"),
        ("--bits 32 --group-size 32", "--group-size: expected none with --bits 32"),
        ("--op swiglu --only model", "--op: times operations"),
        ("--only model --batch 3", "--batch: is for operations, which --only model leaves out"),
        ("--only ops --decode-tokens 3", "--decode-tokens: is for the model, which --only ops"),
        ("--op swiglu --peers", "--peers: compares whole models"),
        ("--only ops --peers", "--peers: compares whole models"),
        ("--peers --peer vllm", "--peer: expected one of mlx-lm, llama.cpp, openvino, got vllm"),
        ("--peer mlx-lm", "--peer: expected together with --peers"),
        ("--nonsense", "No such option: --nonsense"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(bench: Bench, options: str, says: str) -> None:
    code, out, err = bench(options)
    assert (code, out) == (2, "")
    assert err.startswith("bench: ")
    assert err.count("\n") == 1
    assert says in err


def test_another_error_is_one_line_and_exit_code_1(bench: Bench) -> None:
    code, out, err = bench("--model /nowhere/at/all")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "/nowhere/at/all" in err


def test_a_warning_is_one_line(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(_run: object) -> int:
        warnings.simplefilter("always")
        warnings.warn("computed as by cpu", stacklevel=1)
        return 0

    monkeypatch.setattr(cli, "show", warn)
    assert bench(QUICK) == (0, "", "bench: computed as by cpu\n")


def test_a_model_beyond_memory_is_refused_before_it_is_made(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinyllm_bench.models.model.available_memory", lambda gpu: 4_000_000_000)
    code, _, err = bench("--shape qwen3-4b --bits 16")
    assert code == 1
    assert "qwen3-4b at 16 bits needs" in err
    assert "4.0 GB are free: take fewer --bits" in err


def test_ctrl_c_shows_what_was_measured_by_then(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(QwenRunner, "decode", interrupt)
    code, out, _ = bench(f"{QUICK_MODEL} --json --only model")
    assert code == 130
    document = json.loads(out)
    assert document["interrupted"]
    assert document["ceilings"] is not None
    rows = [(row["regime"], row["by"]) for row in document["results"]]
    assert rows == [("prefill", ops.name) for ops in all_opsets()]


@pytest.mark.exhaustive
def test_peers_stand_beside_the_opsets(bench: Bench) -> None:
    code, out, err = bench(f"{QUICK_MODEL} --json --only model --ops mlx --peers")
    assert code == 0
    document = json.loads(out)
    names = {row["by"] for row in document["results"]}
    assert names >= {"mlx", "mlx-lm"}
    absent = importlib.util.find_spec("llama_cpp") is None
    assert any(name.startswith("llama.cpp") for name in names) != absent
    without_openvino = importlib.util.find_spec("openvino") is None
    assert len(document["notices"]) == absent + without_openvino
    assert ("llama-cpp-python is not installed" in err) == absent


def test_a_reader_that_leaves_early_is_no_error() -> None:
    code = f"""
import os, sys
from tinyllm_bench import ceilings, cli
ceilings._READ_BYTES, ceilings._SIDE = 1 << 16, 64
sys.argv = "bench {QUICK} --op swiglu".split()
exit(cli.main())
"""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_help_needs_no_mlx() -> None:
    code = (
        "import sys\nfrom tinyllm_bench import cli\nsys.argv = ['bench', '--help']\n"
        "cli.main()\nassert 'mlx.core' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--prompt-tokens" in done.stdout


def test_settings_say_which_half_is_timed() -> None:
    both = Settings()
    assert (both.times_ops, both.times_model, both.context_tokens) == (True, True, 128)
    assert not Settings(op=["swiglu"]).times_model
    assert Settings(context=7).context_tokens == 7
    with pytest.raises(UsageError, match="--only: expected one of ops, model, got nothing"):
        Settings(only="")
