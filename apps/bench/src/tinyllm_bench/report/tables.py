"""Tables of a report, and numbers for people."""

import math
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tinyllm_bench.cases.whole_model import MODEL
from tinyllm_bench.report.report import Report
from tinyllm_bench.rounds import Case, Failure, Result

_WIDTH = 118  # characters of a line in a file or a pipe
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_SPEEDS = ("GB/s", "of read", "TFLOP/s", "of peak", "x ref")
_BRIEF = slice(1, None, 2)  # selects the shares, and leaves out the speeds


class _Console(Console):
    """A console that raises the error of a closed pipe. By default, rich exits with code 1."""

    def on_broken_pipe(self) -> None:
        """Raise the error again."""
        raise BrokenPipeError


def report_console() -> Console:
    """Return a console for tables, as wide as the terminal, or wide enough for a file."""
    console = _Console(highlight=False)
    return console if console.is_terminal else _Console(highlight=False, width=_WIDTH)


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
    parts: list[RenderableType] = [Text(line) for line in heading(report)]
    models = [row for row in report.results if row.case.what == MODEL]
    operations = [row for row in report.results if row.case.what != MODEL]
    if models or report.failures:
        parts += [Text(), _model_table(report, models, brief)]
    if operations:
        parts += [Text(), _op_table(report, operations, brief)]
    return Group(*parts, *map(Text, _remarks(report)))


def heading(report: Report) -> list[str]:
    """Return lines for the machine, its ceilings and the model."""
    lines = [str(report.machine)]
    ceilings = report.ceilings
    if ceilings is not None:
        lines.append(f"reads {number(ceilings.read_gbps)} GB/s ({ceilings.read_how})")
        lines.append(f"computes {number(ceilings.tflops)} TFLOP/s ({ceilings.tflops_how})")
    size = f"{report.model_bytes / 1e6:,.0f} MB"
    return [*lines, f"{report.name}: {size} of weights, {report.weight_format}"]


def _model_table(report: Report, rows: list[Result], brief: bool) -> Table:
    """Return a table of the tokens per second, or the failure, of each implementation."""
    numbers = ("tokens/s", "first token", "spread", "MB", *_speed_names(brief))
    table = new_table(("model", "by"), numbers)
    every: list[Result | Failure] = [*rows, *report.failures]
    last: Case | None = None
    for row in sorted(every, key=lambda row: [each.case for each in every].index(row.case)):
        label = "" if row.case == last else f"{row.case.regime}, {row.case.operand}"
        last = row.case
        if isinstance(row, Failure):
            reason = f"failed: {row.reason}"
            table.add_row(f"{label}\n{reason}" if label else reason, row.by, "failed")
            continue
        is_prefill = row.case.regime == "prefill"
        table.add_row(
            label,
            row.by,
            number(row.tokens_per_second) + _mark(row),
            duration(row.samples.median) if is_prefill else "",
            _spread(row),
            number(row.cost.bytes / 1e6),
            *_speeds(report, row, brief),
        )
    return table


def _op_table(report: Report, rows: list[Result], brief: bool) -> Table:
    """Return a table of the time of each operation at each size."""
    table = new_table(("operation", "by"), ("time", "spread", *_speed_names(brief)))
    last: Case | None = None
    for row in rows:
        case = row.case
        if last is not None and last.what != case.what:
            table.add_section()
        table.add_row(
            "" if case == last else f"{case.what} {case.operand}, {case.regime}",
            row.by,
            duration(row.samples.median) + _mark(row),
            _spread(row),
            *_speeds(report, row, brief),
        )
        last = case
    return table


def _speed_names(brief: bool) -> tuple[str, ...]:
    return (*_SPEEDS[:4][_BRIEF], _SPEEDS[4]) if brief else _SPEEDS


def _speeds(report: Report, row: Result, brief: bool) -> list[str]:
    """Return the columns of both tables."""
    median, cost, ceilings = row.samples.median, row.cost, report.ceilings
    cells = [number(cost.gbps(median)), "", "", ""]
    if ceilings is not None:
        cells[1] = percent(ceilings.share_of_read(cost, median))
    if cost.flops:
        cells[2] = number(cost.tflops(median))
        if ceilings is not None:
            cells[3] = percent(ceilings.share_of_compute(cost, median))
    relative = "" if row.relative is None else number(row.relative)
    return [*(cells[_BRIEF] if brief else cells), relative]


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


def _mark(row: Result) -> str:
    return "*" if row.samples.cold else ""


def _spread(row: Result) -> str:
    """Return half the interquartile range."""
    return "" if len(row.samples.seconds) == 1 else f"±{row.samples.spread / 2:.0%}"


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
