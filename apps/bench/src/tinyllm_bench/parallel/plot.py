"""Predictions, for eyes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tinyllm_bench.parallel.prediction import Prediction, fastest
from tinyllm_bench.parallel.report import Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_predictions(title: Sequence[str], found: Predictions, path: Path) -> None:
    """Draw tokens a second over the number of ranks, and how long a token waits for others.

    Args:
        title: the model and the assumptions.
        found: a curve for each link.
        path: the image.

    Raises:
        OSError: if the file cannot be written.
    """
    from matplotlib.figure import Figure  # 0.3 s, for this option alone

    image = Figure(figsize=(9, 3.8), layout="constrained")
    image.suptitle("\n".join(title), fontsize=8)
    speeds, waits = image.subplots(1, 2)
    for link, predictions in found.items():
        label = f"{link.name}, {link.latency * 1e6:g} us"
        _draw(speeds, predictions, [each.tokens_per_second for each in predictions], label)
        several = predictions[1:]
        _draw(waits, several, [each.waiting * 1e3 for each in several], "")
    one = next(iter(found.values()))
    ranks = [each.ranks for each in one]
    bound = [1 / each.computing for each in one]
    speeds.plot(ranks, bound, color="black", linewidth=0.8, label="without waiting")
    computing = [each.computing * 1e3 for each in one[1:]]
    waits.plot(ranks[1:], computing, color="black", linewidth=0.8, label="computing")
    for axes, name in ((speeds, "tokens/s; a ring marks the fastest"), (waits, "waiting, ms")):
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("ranks", fontsize=8)
        axes.set_xticks(ranks)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=6)
    waits.set_yscale("log")
    for predictions in found.values():
        best = fastest(predictions)
        speeds.plot(best.ranks, best.tokens_per_second, "o", ms=9, mfc="none", color="black")
    image.savefig(path, dpi=120)


def _draw(
    axes: "Axes", predictions: Sequence[Prediction], values: Sequence[float], label: str
) -> None:
    axes.plot([each.ranks for each in predictions], values, marker=".", label=label)
