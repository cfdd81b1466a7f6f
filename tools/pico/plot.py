"""The plot of a run: loss, and recall on held-out phrasings, over tokens."""

import json
from pathlib import Path

from matplotlib.figure import Figure


def plot(log: Path, image: Path) -> None:
    """Draws `log.jsonl` into the PNG file `image`; the quantization-aware part is shaded."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    millions = [line["tokens"] / 1e6 for line in lines]
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    axes.plot(millions, [line["loss"] for line in lines], color="tab:blue", linewidth=1)
    axes.set(xlabel="tokens, millions", ylabel="loss on answers", yscale="log")
    axes.set_title("pico: training")
    axes.grid(alpha=0.3, which="both")
    # From the last line that is not: an extended run may have begun and left that part before.
    plain = [place for place, line in zip(millions, lines, strict=True) if not line["quantized"]]
    if plain and plain[-1] < millions[-1]:
        axes.axvspan(plain[-1], millions[-1], alpha=0.12, color="tab:gray", label="4-bit weights")
        axes.legend(loc="center right")
    tested = [line for line in lines if "recall" in line]
    if tested:
        places = [line["tokens"] / 1e6 for line in tested]
        percents = [100 * line["recall"] for line in tested]
        right = axes.twinx()
        right.plot(places, percents, "o-", color="tab:orange", markersize=3)
        right.set(ylabel="recall on held-out phrasings, percent", ylim=(0, 100))
    figure.savefig(image, dpi=120)
