"""`bench roofline`: limits by hand, and figures that hang together."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tinyllm_bench.ceilings import Ceilings
from tinyllm_bench.cost import Cost
from tinyllm_bench.roofline.roofs import Roofs, named_peaks

Bench = Callable[[str], tuple[int, str, str]]
QUICK = "roofline --shape pico --dtype float32 --seconds 0.0001"


def test_the_roof_is_what_memory_allows_and_then_the_highest_peak() -> None:
    roofs = Roofs.of(Ceilings(40.0, 0.2, "", "float32"), {"bfloat16": 0.4})
    assert roofs.peaks == {"float32": 0.2, "bfloat16": 0.4}
    assert roofs.at(5.0) == pytest.approx(0.2)  # 40 GB/s of five operations each
    assert roofs.at(10.0) == roofs.at(1000.0) == pytest.approx(0.4)
    few = Cost(bytes=40_000_000, flops=40_000_000)  # at best in a millisecond
    assert roofs.share(few, 2e-3) == pytest.approx(0.5)
    many = Cost(bytes=1000, flops=400_000_000)
    assert roofs.share(many, 4e-3) == pytest.approx(0.25)


def test_peaks_are_read_by_name() -> None:
    assert named_peaks(["pairs of bfloat16=0.47", "a=b=1"]) == {
        "pairs of bfloat16": 0.47,
        "a=b": 1.0,
    }


def test_points_stand_below_the_roofs_of_the_same_run(bench: Bench, tmp_path: Path) -> None:
    image = tmp_path / "roofline.svg"
    code, out, err = bench(f"{QUICK} --bits 4 --bits 32 --peak x=7 --json --plot {image}")
    assert (code, err) == (0, f"bench: wrote {image}\n")
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


def test_the_table_names_what_was_measured(bench: Bench) -> None:
    code, out, _ = bench(f"{QUICK} --bits 4")
    assert code == 0
    for name in ("gate_proj 768x256", "4/2 heads of 64", "of the roof", "512"):
        assert name in out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--shape gpt", "--shape: expected one of pico, qwen3-0.6b"),
        ("--bits 7", "--bits"),
        ("--bits 16 --dtype float32", "--dtype: expected one of 16 bits"),
        ("--dtype int8", "--dtype: expected one of auto, float32, float16, bfloat16, got int8"),
        ("--peak 0.4", "--peak: expected NAME=TFLOPS, such as 'bfloat16=0.4', got 0.4"),
        ("--peak x=0", "--peak"),
        ("--peak x=nan", "--peak"),
        ("--seconds 0", "--seconds: expected a number above 0, got 0.0"),
        ("--plot out.txt", "--plot: expected one of .png, .svg, .pdf, got .txt"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(bench: Bench, options: str, says: str) -> None:
    code, out, err = bench(f"roofline {options}")
    assert (code, out) == (2, "")
    assert err.startswith("bench: ")
    assert err.count("\n") == 1
    assert says in err
