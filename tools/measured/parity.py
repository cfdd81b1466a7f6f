"""The tables of docs/parity-tables.md as a picture."""

import re
from pathlib import Path

from matplotlib.figure import Figure

PAGE = Path(__file__).parents[2] / "docs" / "parity-tables.md"
BAR = 1e-4  # bound on the errors of float32 logits
NUMBER = re.compile(r"^\d\.\de[+-]\d\d$")


def read() -> dict[str, list[float]]:
    """Return the relative errors of the logits, by OpSet and column of the tables."""
    found: dict[str, list[float]] = {}
    columns: list[str] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == "model":
            columns = cells
        if len(cells) != len(columns) or not any(NUMBER.match(cell) for cell in cells):
            continue
        row = dict(zip(columns, cells, strict=True))
        for column, cell in row.items():
            if NUMBER.match(cell):
                found.setdefault(f"{row['ops']}, {column.removeprefix('logits, ')}", []).append(
                    float(cell)
                )
    if not found:
        raise ValueError(f"{PAGE}: expected tables with columns model, ops and logits, found none")
    return found


def draw(image: Path) -> str:
    """Draw a dot for each model, a row for each OpSet and dtype. Equal results are at the left."""
    found = dict(sorted(read().items()))
    figure = Figure(figsize=(7, 0.45 * len(found) + 1.3), layout="constrained")
    axes = figure.subplots()
    least = 1e-8
    for row, errors in enumerate(found.values()):
        exact = sum(error == 0 for error in errors)
        axes.plot([e for e in errors if e], [row] * (len(errors) - exact), "o", alpha=0.35)
        if exact:
            axes.plot([least], [row], "<", color="black")
            axes.text(least * 1.4, row, f"{exact} are equal", fontsize=8, va="center")
    axes.axvline(BAR, color="tab:red", linewidth=1, linestyle="--")
    axes.text(BAR * 1.1, -0.55, "bar of float32", fontsize=8, color="tab:red")
    axes.set(xscale="log", xlim=(least / 2, 1), xlabel="largest error of the logits, relative")
    axes.set_yticks(range(len(found)), list(found))
    axes.set_ylim(len(found) - 0.5, -0.8)
    axes.grid(alpha=0.3, axis="x")
    axes.set_title("Distance from mlx-lm and transformers, one dot a model")
    figure.savefig(image, dpi=120)
    models = sum(len(errors) for errors in found.values())
    return f"{models} comparisons in {PAGE.name}"
