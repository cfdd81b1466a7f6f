"""Images: readable labels, and servers without answers."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from plot.__main__ import app
from plot.bench import figure_of_bench
from plot.serving import figure_of_servers
from tinyllm_cli.program import run_program

NAMES = ("reference", "mlx", "cpu", "mlx-lm", "llama.cpp Q4_0")
MEASURED = Path(__file__).parents[3] / "docs" / "measured"


def results(what: str, operand: str, regime: str) -> list[dict[str, Any]]:
    """Return results of which each is as fast as its name is long."""
    common = {"what": what, "operand": operand, "regime": regime, "share_of_limit": 0.5}
    return [common | {"by": name, "tokens_per_second": float(len(name))} for name in NAMES]


def server(
    name: str, rate: float, answered: int, latencies: tuple[float, ...] | None = (0.5, 0.6, 0.8)
) -> dict[str, Any]:
    return {
        "name": name,
        "rate": rate,
        "answered": answered,
        "tokens_per_second": 3.0 * answered,
        "first_token": latencies,
        "between_tokens": latencies,
    }


@pytest.fixture
def document() -> dict[str, Any]:
    return json.loads((MEASURED / "qwen3-0.6b-4bit-512.json").read_text())


def test_the_names_of_all_implementations_stand_side_by_side(document: dict[str, Any]) -> None:
    document["results"] = [
        *results("model", "128 tokens", "prefill"),
        *results("model", "after 128 tokens", "decode"),
        # The longest label of an operation leaves the least space.
        *results("attention", "4/2 heads of 64, 129 keys", "decode"),
    ]
    figure = figure_of_bench(document)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    assert len(figure.axes) == 3
    for axes in figure.axes[:2]:
        labels = axes.get_xticklabels()
        assert [label.get_text().replace("\n", " ") for label in labels] == list(NAMES)
        renderer = canvas.get_renderer()  # type: ignore[no-untyped-call]
        boxes = [label.get_window_extent(renderer) for label in labels]
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


@pytest.mark.parametrize("none", [None, (0.0, 0.0, 0.0)])  # zeros: older documents
def test_servers_without_answers_have_no_curve(
    tmp_path: Path, none: tuple[float, ...] | None
) -> None:
    document = json.loads((MEASURED / "serve-load-qwen3-0.6b.json").read_text())
    document["servers"] = [
        *(server("good", rate, 3) for rate in (1.0, 2.0, 4.0)),
        server("silent", 1.0, 0, none),
    ]
    figure_of_servers(document).savefig(tmp_path / "curves.svg")
    image = (tmp_path / "curves.svg").read_text()
    assert image.count("<!-- p95 -->") == 2
    assert "silent" not in image
    for rates in ((4.0,), (1.0, 2.0)):
        document["servers"] = [server("silent", rate, 0, none) for rate in rates]
        figure_of_servers(document).savefig(tmp_path / "silence.svg")


@pytest.mark.parametrize("rates", [(4.0,), (1.0, 2.0)])
def test_answers_of_one_piece_have_no_times_between_pieces(
    tmp_path: Path, rates: tuple[float, ...]
) -> None:
    document = json.loads((MEASURED / "serve-load-qwen3-0.6b.json").read_text())
    document["servers"] = [server("s", rate, 3) | {"between_tokens": None} for rate in rates]
    figure = figure_of_servers(document)
    figure.savefig(tmp_path / "short.svg")
    assert [bool(axes.lines or axes.patches) for axes in figure.axes][:2] == [True, True]
    assert not figure.axes[2].lines


@pytest.mark.parametrize("name", ["qwen3-0.6b-4bit-512", "serve-load-qwen3-0.6b"])
def test_the_command_draws_a_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    image = tmp_path / "out.png"
    monkeypatch.setattr("sys.argv", ["plot", str(MEASURED / f"{name}.json"), str(image)])
    assert run_program(app, "plot") == 0
    assert image.read_bytes().startswith(b"\x89PNG")
    assert image.stat().st_size > 20_000


@pytest.mark.parametrize(
    ("image", "code", "message"),
    [
        ("out.txt", 2, "expected one of .png, .svg, .pdf, got .txt"),
        ("/nowhere/at/all/out.png", 1, "there is no folder /nowhere/at/all"),
    ],
)
def test_an_image_that_cannot_be_written_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    image: str,
    code: int,
    message: str,
) -> None:
    monkeypatch.setattr("sys.argv", ["plot", str(MEASURED / "qwen3-0.6b-4bit-512.json"), image])
    assert run_program(app, "plot") == code
    assert message in capsys.readouterr().err
