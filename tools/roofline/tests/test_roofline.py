"""Roofline: limits by hand, and consistent reports."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from roofline.__main__ import app
from roofline.limits import Limits, named_peaks
from tinyllm_bench.ceilings import Ceilings
from tinyllm_bench.cost import Cost

Run = Callable[[str], tuple[int, str, str]]
QUICK = "--shape pico --dtype float32 --seconds 0.0001"


@pytest.fixture
def run(run_tool: Callable[..., tuple[int, str, str]], small_ceilings: None) -> Run:
    """Return a function that runs the command and returns its exit code, stdout and stderr."""
    return partial(run_tool, app, "roofline")


def test_the_limit_is_reading_and_then_the_highest_peak() -> None:
    limits = Limits.of(Ceilings(40.0, 0.2, "", "float32"), {"bfloat16": 0.4})
    assert limits.peaks == {"float32": 0.2, "bfloat16": 0.4}
    assert limits.at(5.0) == pytest.approx(0.2)  # 40 GB/s, five operations per byte
    assert limits.at(10.0) == limits.at(1000.0) == pytest.approx(0.4)
    few = Cost(bytes=40_000_000, flops=40_000_000)  # takes at least 1 ms
    assert limits.share(few, 2e-3) == pytest.approx(0.5)
    many = Cost(bytes=1000, flops=400_000_000)
    assert limits.share(many, 4e-3) == pytest.approx(0.25)


def test_peaks_are_read_by_name() -> None:
    assert named_peaks(["pairs of bfloat16=0.47", "a=b=1"]) == {
        "pairs of bfloat16": 0.47,
        "a=b": 1.0,
    }


def test_shares_are_of_the_limits_of_the_same_run(run: Run, tmp_path: Path) -> None:
    image = tmp_path / "roofline.svg"
    code, out, err = run(f"{QUICK} --bits 4 --bits 32 --peak x=7 --json --plot {image}")
    assert (code, err) == (0, f"roofline: wrote {image}\n")
    document = json.loads(out)
    assert document["format"] == "tinyllm-roofline/1"
    read, peaks = document["ceilings"]["read_gbps"] / 1e3, document["peaks"]
    assert peaks["x"] == 7
    assert [curve["name"] for curve in document["curves"]] == [
        "4-bit affine, group 64, float32, decoded",
        "4-bit affine, group 64, float32, prompt",
        "attention, decoded",
        "attention, prompt",
        "float32, decoded",
        "float32, prompt",
    ]
    for curve in document["curves"]:
        tokens = [point["tokens"] for point in curve["points"]]
        assert tokens == sorted(tokens)
        for point in curve["points"]:
            assert point["intensity"] == pytest.approx(point["flops"] / point["bytes"])
            roof = min(point["intensity"] * read, max(peaks.values()))
            assert point["share_of_roof"] == pytest.approx(point["tflops"] / roof)
    assert "float32, prompt" in image.read_text()


def test_the_table_names_what_was_measured(run: Run) -> None:
    code, out, _ = run(f"{QUICK} --bits 4")
    assert code == 0
    for name in ("gate_proj 768x256", "4/2 heads of 64", "of the roof", "512"):
        assert name in out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--shape gpt", "--shape: expected one of pico, qwen3-0.6b"),
        ("--shape qwen3-30b-a3b", "--shape: expected a model without experts, got qwen3-30b-a3b"),
        ("--bits 7", "--bits"),
        ("--bits 16 --dtype float32", "--dtype: expected a type of 16 bits"),
        ("--dtype int8", "--dtype: expected one of auto, float32, float16, bfloat16, got int8"),
        ("--peak 0.4", "--peak: expected NAME=TFLOPS, such as 'bfloat16=0.4', got 0.4"),
        ("--peak x=0", "--peak"),
        ("--peak x=nan", "--peak"),
        ("--seconds 0", "--seconds: expected a finite number above 0, got 0.0"),
        ("--plot out.txt", "--plot: expected one of .png, .svg, .pdf, got .txt"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(run: Run, options: str, says: str) -> None:
    code, out, err = run(options)
    assert (code, out) == (2, "")
    assert err.startswith("roofline: ")
    assert err.count("\n") == 1
    assert says in err
