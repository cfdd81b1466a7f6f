"""The image: what stands in it can be read."""

from itertools import pairwise

from matplotlib.backends.backend_agg import FigureCanvasAgg
from tinyllm_bench.ceilings import Ceilings
from tinyllm_bench.cost import Cost
from tinyllm_bench.machine import Machine
from tinyllm_bench.plot import figure_of
from tinyllm_bench.report import Report
from tinyllm_bench.result import Result
from tinyllm_bench.samples import Samples
from tinyllm_bench.settings import Settings

NAMES = ("reference", "mlx", "cpu", "mlx-lm", "llama.cpp Q4_0")


def race(what: str, operand: str, regime: str) -> list[Result]:
    """Each program as fast as its name is long."""
    return [
        Result(what, operand, regime, 1, name, Samples((1 / len(name),)), Cost(1), None)
        for name in NAMES
    ]


def test_the_names_of_all_programs_stand_side_by_side() -> None:
    report = Report(Settings(), Machine.here(), "0.1.0", "pico", "4-bit", 1)
    report.ceilings = Ceilings(40.0, 0.2, "all of it", "a product")
    report.results = [
        *race("model", "128 tokens", "prefill"),
        *race("model", "after 128 tokens", "decode"),
        # The longest label of an operation leaves the least room.
        *race("attention", "4/2 heads of 64, 129 keys", "decode"),
    ]
    figure = figure_of(report)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    assert len(figure.axes) == 3
    for axes in figure.axes[:2]:
        labels = axes.get_xticklabels()
        assert [label.get_text().replace("\n", " ") for label in labels] == list(NAMES)
        boxes = [label.get_window_extent(canvas.get_renderer()) for label in labels]
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
