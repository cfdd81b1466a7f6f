"""The program: what comes out where, and with which exit code."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tinyllm_bench.errors import UsageError
from tinyllm_bench.opsets import all_opsets
from tinyllm_bench.qwen_runner import QwenRunner
from tinyllm_bench.settings import Settings

Bench = Callable[[str], tuple[int, str, str]]
QUICK = "--seconds 0.0001 --prompt-tokens 4 --decode-tokens 2 --batch 2"


def test_a_whole_run_prints_tables_and_draws_a_plot(bench: Bench, tmp_path: Path) -> None:
    image = tmp_path / "out.png"
    code, out, err = bench(f"{QUICK} --plot {image}")
    assert code == 0
    assert "tokens/s" in out
    for name in ("linear", "attention", "quantize", "prefill, 4 tokens", "decode, after 4 tokens"):
        assert name in out
    assert err == f"bench: wrote {image}\n"
    assert image.read_bytes().startswith(b"\x89PNG")
    assert image.stat().st_size > 20_000


def test_json_is_one_document_with_everything(bench: Bench) -> None:
    code, out, err = bench(f"{QUICK} --json --only model --context 6")
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
        "notices",
        "interrupted",
    }
    assert document["format"] == "tinyllm-bench/1"
    assert set(document["machine"]) >= {"cpu", "cores", "isa", "mlx", "device", "memory"}
    assert document["settings"]["prompt_tokens"] == 4
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
    code, out, _ = bench(f"{QUICK} --json --only model --ops mlx --model pico")
    assert code == 0
    assert json.loads(out)["model"]["weights"] == "4-bit affine, group 64, float32"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--shape gpt", "--shape: expected one of pico, qwen3-0.6b, qwen3-4b, qwen2.5-0.5b"),
        ("--ops cuda", "--ops: expected one of reference, mlx"),
        ("--op matmul", "--op: expected one of linear, "),
        ("--only all", "--only: expected one of ops, model, got all"),
        ("--bits 7", "--bits"),
        ("--group-size 100", "--group-size"),
        ("--mode int", "--mode"),
        ("--dtype int8", "--dtype: expected one of auto, float32, float16, bfloat16, got int8"),
        ("--bits 16 --dtype float32", "--dtype: expected one of 16 bits"),
        ("--prompt-tokens 0", "--prompt-tokens: expected 1 to 1,000,000, got 0"),
        ("--prompt-tokens 4000", "at most 2048 tokens, the context of pico, got 4032"),
        ("--context -1", "--context"),
        ("--decode-tokens 0", "--decode-tokens"),
        ("--batch 0", "--batch"),
        ("--seconds 0", "--seconds: expected a number above 0, got 0.0"),
        ("--seconds nan", "--seconds"),
        ("--plot out.txt", "--plot: expected one of .png, .svg, .pdf, got .txt"),
        ("--model pico --bits 4", "--bits: is for random weights"),
        ("--op swiglu --only model", "--op: times operations"),
        ("--op swiglu --peers", "--peers: compares whole models"),
        ("--only ops --peers", "--peers: compares whole models"),
        ("--peers --peer vllm", "--peer: expected one of mlx-lm, llama.cpp, got vllm"),
        ("--peer mlx-lm", "--peer: chooses among those of --peers"),
        ("--nonsense", "No such option: --nonsense"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(bench: Bench, options: str, says: str) -> None:
    code, out, err = bench(options)
    assert (code, out) == (2, "")
    assert err.startswith("bench: ")
    assert err.count("\n") == 1
    assert says in err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--model /nowhere/at/all", "/nowhere/at/all"),
        ("--plot /nowhere/at/all/out.png", "there is no folder /nowhere/at/all"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_1(
    bench: Bench, options: str, says: str
) -> None:
    code, out, err = bench(options)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert says in err


def test_a_model_beyond_memory_is_refused_before_it_is_made(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinyllm_bench.subject.available_memory", lambda gpu: 4_000_000_000)
    code, _, err = bench("--shape qwen3-4b --bits 16")
    assert code == 1
    assert "qwen3-4b at 16 bits needs" in err
    assert "4.0 GB are free: take fewer bits" in err


def test_a_plot_without_matplotlib_says_how_to_get_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    code, out, err = bench("--plot out.png")
    assert (code, out) == (1, "")
    assert "pip install 'tinyllm-bench[plot]'" in err


def test_ctrl_c_shows_what_was_measured_by_then(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(QwenRunner, "decode", interrupt)
    code, out, _ = bench(f"{QUICK} --json --only model")
    assert code == 130
    document = json.loads(out)
    assert document["interrupted"]
    assert document["ceilings"] is not None
    rows = [(row["regime"], row["by"]) for row in document["results"]]
    assert rows == [("prefill", ops.name) for ops in all_opsets()]


def test_peers_stand_beside_the_opsets(bench: Bench) -> None:
    code, out, err = bench(f"{QUICK} --json --only model --ops mlx --peers")
    assert code == 0
    document = json.loads(out)
    names = {row["by"] for row in document["results"]}
    assert names >= {"mlx", "mlx-lm"}
    absent = importlib.util.find_spec("llama_cpp") is None
    assert any(name.startswith("llama.cpp") for name in names) != absent
    assert len(document["notices"]) == absent
    assert ("llama-cpp-python is not installed" in err) == absent


@pytest.mark.parametrize("options", [f"{QUICK} --op swiglu", "predict --ranks 2 --read 1"])
def test_a_reader_that_leaves_early_is_no_error(options: str) -> None:
    code = f"""
import os, sys
from tinyllm_bench import ceilings, cli
ceilings._READ_BYTES, ceilings._SIDE = 1 << 16, 64
sys.argv = "bench {options}".split()
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
    assert (both.times_ops, both.times_model, both.keys_before) == (True, True, 128)
    assert not Settings(op=("swiglu",)).times_model
    assert Settings(context=7).keys_before == 7
    with pytest.raises(UsageError, match="--only: expected one of ops, model, got nothing"):
        Settings(only="")
