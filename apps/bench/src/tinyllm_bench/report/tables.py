"""Tables of a report, numbers for people, and the progress of a run."""

import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tinyllm_bench.cases.whole_model import MODEL
from tinyllm_bench.ceilings import Ceilings
from tinyllm_bench.report.report import Report
from tinyllm_bench.rounds import Case, Failure, Result

_WIDTH = 118  # characters of a line in a file or a pipe
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_SPEEDS = ("GB/s", "of read", "TFLOP/s", "of peak", "x ref")
_SHARES = ("of read", "of peak", "x ref")  # without the speeds that they follow from


class _Console(Console):
    """A console that raises the error of a closed pipe. By default, rich exits with code 1."""

    def on_broken_pipe(self) -> None:
        """Raise the error again."""
        raise BrokenPipeError


def report_console() -> Console:
    """Return a console for tables, as wide as the terminal, or wide enough for a file.

    It prints brackets and colons as they are, because names of models may contain them.
    """
    console = _Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _WIDTH
    return console


def print_report(report: Report) -> None:
    """Write the tables to stdout."""
    console = report_console()
    console.print(tables(report, brief=console.width < _WIDTH))


def new_table(labels: Sequence[str], numbers: Sequence[str]) -> Table:
    """Return an empty table with columns for labels, then columns for numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, label in enumerate(labels):
        table.add_column(label, overflow="fold", no_wrap=i > 0)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def tables(report: Report, *, brief: bool = False) -> RenderableType:
    """Return the heading, the tables of the model and of the operations, and remarks.

    For a narrow terminal, `brief` leaves out columns that follow from other columns.
    """
    rows: list[Result | Failure] = [*report.results, *report.failures]
    cases = list(dict.fromkeys(row.case for row in rows))
    rows.sort(key=lambda row: cases.index(row.case))
    speeds = _SHARES if brief else _SPEEDS
    parts: list[RenderableType] = [Text(line) for line in _heading(report)]
    if models := [row for row in rows if row.case.what == MODEL]:
        columns = ("tokens/s", "first token", "spread", "host", *speeds)
        parts += [Text(), _table("model", columns, models, report.ceilings)]
    if operations := [row for row in rows if row.case.what != MODEL]:
        columns = ("time", "spread", *speeds)
        parts += [Text(), _table("operation", columns, operations, report.ceilings)]
    return Group(*parts, *map(Text, _remarks(report)))


def _heading(report: Report) -> list[str]:
    """Return lines for the machine, its ceilings and the model."""
    lines = [str(report.machine)]
    ceilings = report.ceilings
    if ceilings is not None:
        lines.append(f"reads {number(ceilings.read_gbps)} GB/s ({ceilings.read_how})")
        lines.append(f"computes {number(ceilings.tflops)} TFLOP/s ({ceilings.tflops_how})")
    model = report.model
    return [*lines, f"{model.name}: {model.bytes / 1e6:,.0f} MB of weights, {model.weights}"]


def _table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Result | Failure],
    ceilings: Ceilings | None,
) -> Table:
    """Return a table of measurements, and of failures with their reasons. Name each case once."""
    table = new_table((title, "by"), columns)
    last: Case | None = None
    for row in rows:
        case, label = row.case, ""
        if last is not None and last.what != case.what:
            table.add_section()
        if case != last:
            label = f"{case.what} {case.operand}, {case.regime}"
            if case.what == MODEL:
                label = f"{case.regime}, {case.operand}"
        last = case
        if isinstance(row, Failure):
            table.add_row(f"{label}\nfailed: {row.reason}".lstrip(), row.by, "failed")
        else:
            cells = _cells(row, ceilings)
            table.add_row(label, row.by, *(cells.get(name, "") for name in columns))
    return table


def _cells(row: Result, ceilings: Ceilings | None) -> dict[str, str]:
    """Return the cells of a row by column, without columns that do not apply."""
    samples, cost, median = row.samples, row.cost, row.samples.median
    mark = "*" if samples.cold else ""
    cells = {
        "time": duration(median) + mark,
        "tokens/s": number(row.tokens_per_second) + mark,
        "GB/s": number(cost.gbps(median)),
    }
    if row.case.regime == "prefill":
        cells["first token"] = duration(median)
    if samples.host:
        cells["host"] = duration(statistics.median(samples.host))
    if len(samples.seconds) > 1:
        cells["spread"] = f"±{samples.spread / 2:.0%}"  # half the interquartile range
    if cost.flops:
        cells["TFLOP/s"] = number(cost.tflops(median))
    if ceilings is not None:
        cells["of read"] = percent(ceilings.share_of_read(cost, median))
        if cost.flops:
            cells["of peak"] = percent(ceilings.share_of_compute(cost, median))
    if row.relative is not None:
        cells["x ref"] = number(row.relative)
    return cells


def _remarks(report: Report) -> list[str]:
    """Return explanations of marks in the tables."""
    lines = []
    if any(row.samples.cold for row in report.results):
        lines.append(
            "* one sample: the first call took longer than the budget; --seconds gives it more"
        )
    if report.interrupted:
        lines.append("interrupted: the remaining cases were not measured")
    return ["", *lines] if lines else []


def number(value: float) -> str:
    """Return a number with three significant digits, without an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(places, 6)}f}"


def percent(share: float) -> str:
    """Return a share as a percentage, with one decimal if it is small."""
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}"


def duration(seconds: float) -> str:
    """Return a time in seconds, milliseconds or microseconds."""
    size, unit = next((pair for pair in _UNITS if seconds >= pair[0]), _UNITS[-1])
    return f"{number(seconds / size)} {unit}"


@contextmanager
def progress_line(steps: int | None = None) -> Iterator[Callable[[str, int], None]]:
    """Redraw one line on stderr, and remove it at the end. Without a terminal, do nothing.

    The context yields a function that sets the name of the current step and the finished steps.
    """
    console = Console(stderr=True)
    line = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        disable=not sys.stderr.isatty() or console.is_dumb_terminal,
    )
    task = line.add_task("", total=steps)
    with line:
        yield lambda name, finished: line.update(task, description=name, completed=finished)
