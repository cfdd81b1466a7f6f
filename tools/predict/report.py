"""Report of predictions: tables, JSON and an image."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from predict.link import Link
from predict.model_spec import ModelSpec
from predict.prediction import Assumptions, Prediction, break_even, fastest
from rich.table import Table
from tinyllm_bench.models.weight_format import dtype_name
from tinyllm_bench.report.tables import duration, new_table, number, report_console

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMAT = "tinyllm-predict/1"

Predictions = Mapping[Link, Sequence[Prediction]]


def heading(model: ModelSpec, given: Assumptions) -> list[str]:
    """Return lines for the model and the assumptions."""
    formats = {f"{each.bits}-bit {each.mode}" for each in model.formats.values()}
    stored = ", ".join([*sorted(formats), dtype_name(model.dtype)])
    fixed = f", and {duration(given.fixed)} of a token are not divided" if given.fixed else ""
    rate = f"a rank reads {number(given.read_rate / 1e9)} GB/s{fixed}"
    return [f"{model.name}, {stored}, after {given.keys} tokens", rate]


def print_predictions(model: ModelSpec, given: Assumptions, found: Predictions) -> None:
    """Write the costs of a token, and the speed over each link, to stdout."""
    console = report_console()
    for line in heading(model, given):
        console.print(line)
    for kind, mesh in (("ring", False), ("mesh", True)):
        chosen = [link for link in found if link.mesh == mesh]
        if chosen:
            console.print()
            console.print(_token_table(kind, found[chosen[0]]))
    console.print()
    console.print(_speed_table(found))
    console.print("2 ranks are faster than 1 if a hop takes less than the limit for 2 ranks.")


def json_report(model: ModelSpec, given: Assumptions, found: Predictions) -> str:
    """Return a JSON document. Times are in seconds, sizes in bytes."""
    document = {
        "format": FORMAT,
        "model": model.name,
        "dtype": dtype_name(model.dtype),
        "assumptions": asdict(given),
        "links": [
            asdict(link)
            | {
                "fastest_ranks": fastest(predictions).ranks,
                "predictions": [_row(each) for each in predictions],
            }
            for link, predictions in found.items()
        ],
    }
    return json.dumps(document, indent=2)


def draw_predictions(title: Sequence[str], found: Predictions, path: Path) -> None:
    """Draw tokens per second and the time of waiting over the number of ranks.

    Raises:
        OSError: if the file cannot be written.
    """
    from matplotlib.figure import Figure  # takes 0.3 s, and only --plot needs it

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
    for axes, name in ((speeds, "tokens/s; a circle marks the fastest"), (waits, "waiting, ms")):
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


def _row(prediction: Prediction) -> dict[str, object]:
    messages = prediction.messages
    return {
        "ranks": prediction.ranks,
        "read_bytes": prediction.read_bytes,
        "payload_bytes": messages.payload,
        "wire_bytes": messages.wire_bytes,
        "messages": len(messages.messages),
        "hops": messages.hops,
        "path_bytes": messages.path_bytes,
        "computing": prediction.computing,
        "waiting": prediction.waiting,
        "tokens_per_second": prediction.tokens_per_second,
        "speedup": prediction.speedup,
    }


def _token_table(kind: str, predictions: Sequence[Prediction]) -> Table:
    """Return the values that do not depend on the link."""
    columns = ("read, MB", "computing", "messages", "hops", "payload, KB", "on the wire, KB")
    table = new_table((f"a token, {kind}",), columns)
    for each in predictions:
        table.add_row(
            _ranks(each),
            number(each.read_bytes / 1e6),
            duration(each.computing),
            str(len(each.messages.messages)),
            str(each.messages.hops),
            number(each.messages.payload / 1e3),
            number(each.messages.wire_bytes / 1e3),
        )
    return table


def _speed_table(found: Predictions) -> Table:
    """Return tokens per second, and the speedup over one rank."""
    table = new_table(("tokens/s",), [link.name for link in found])
    for row in zip(*found.values(), strict=True):  # all links have the same numbers of ranks
        speeds = [f"{number(each.tokens_per_second)} ({each.speedup:.2f})" for each in row]
        table.add_row(_ranks(row[0]), *speeds)
    table.add_section()
    best = [fastest(chosen) for chosen in found.values()]
    table.add_row("fastest with", *map(_ranks, best))
    table.add_row("a hop takes", *(duration(link.latency) for link in found))
    table.add_row(
        "limit for 2 ranks",
        *(_limit(link, chosen) for link, chosen in found.items()),
    )
    return table


def _limit(link: Link, predictions: Sequence[Prediction]) -> str:
    """Return the latency at which two ranks are as fast as one."""
    if not {1, 2} <= {each.ranks for each in predictions}:
        return ""
    seconds = break_even(predictions, link)
    return duration(seconds) if seconds > 0 else "never"


def _ranks(prediction: Prediction) -> str:
    return f"{prediction.ranks} rank{'s' if prediction.ranks > 1 else ''}"
