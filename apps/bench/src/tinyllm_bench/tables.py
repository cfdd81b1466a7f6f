"""A report for people."""

import math

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tinyllm_bench.report import Report
from tinyllm_bench.result import Result

_WIDTH = 118  # of what goes to a file or a pipe
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_SPEEDS = ("GB/s", "of read", "TFLOP/s", "of peak", "x ref")


class _Console(Console):
    """A console that leaves a closed pipe to the program, which ends quietly."""

    def on_broken_pipe(self) -> None:
        """Pass the error on; rich itself would exit with 1."""
        raise BrokenPipeError


def report_console() -> Console:
    """A console for tables: a terminal as wide as it is, anything else wide enough."""
    console = _Console(highlight=False)
    return console if console.is_terminal else _Console(highlight=False, width=_WIDTH)


def print_report(report: Report) -> None:
    """Write the tables to stdout."""
    console = report_console()
    console.print(tables(report, brief=console.width < _WIDTH))


def tables(report: Report, *, brief: bool = False) -> RenderableType:
    """What was measured where, the model's table, that of the operations, what to mind.

    Args:
        report: what to show.
        brief: leave out what follows from the other columns, for a narrow terminal.
    """
    parts: list[RenderableType] = [Text(line) for line in heading(report)]
    models = report.of(lambda result: result.what == "model")
    operations = report.of(lambda result: result.what != "model")
    if models:
        parts += [Text(), _model_table(report, models, brief)]
    if operations:
        parts += [Text(), _op_table(report, operations, brief)]
    parts += [Text(line) for line in _remarks(report)]
    return Group(*parts)


def heading(report: Report) -> list[str]:
    """The machine, its ceilings, the model."""
    lines = [str(report.machine)]
    ceilings = report.ceilings
    if ceilings is not None:
        lines.append(f"reads {number(ceilings.read_gbps)} GB/s ({ceilings.read_how})")
        lines.append(f"computes {number(ceilings.tflops)} TFLOP/s ({ceilings.tflops_how})")
    size = f"{report.model_bytes / 1e6:,.0f} MB"
    lines.append(f"{report.name}: {size} of weights, {report.form}")
    return lines


def _model_table(report: Report, rows: list[Result], brief: bool) -> Table:
    """Tokens a second, and what they say about the machine."""
    table = _table("model", "by", "tokens/s", "first token", "spread", "MB", *_speed_names(brief))
    for i, row in enumerate(rows):
        label = f"{row.regime}, {row.operand}"
        fresh = i == 0 or rows[i - 1].regime != row.regime
        first = duration(row.samples.median) if row.regime == "prefill" else ""
        table.add_row(
            label if fresh else "",
            row.by,
            number(row.tokens_per_second) + _mark(row),
            first,
            _spread(row),
            number(row.cost.bytes / 1e6),
            *_speeds(report, row, brief),
        )
    return table


def _op_table(report: Report, rows: list[Result], brief: bool) -> Table:
    """Each operation at each size."""
    table = _table("operation", "by", "time", "spread", *_speed_names(brief))
    for i, row in enumerate(rows):
        before = rows[i - 1] if i else None
        label = f"{row.what} {row.operand}, {row.regime}"
        fresh = before is None or f"{before.what} {before.operand}, {before.regime}" != label
        if before is not None and before.what != row.what:
            table.add_section()
        table.add_row(
            label if fresh else "",
            row.by,
            duration(row.samples.median) + _mark(row),
            _spread(row),
            *_speeds(report, row, brief),
        )
    return table


def _speed_names(brief: bool) -> tuple[str, ...]:
    return _SPEEDS[1::2] + _SPEEDS[4:] if brief else _SPEEDS


def _speeds(report: Report, row: Result, brief: bool) -> list[str]:
    """The columns that both tables share."""
    median, cost, ceilings = row.samples.median, row.cost, report.ceilings
    cells = [number(cost.gbps(median)), "", "", "", ""]
    if ceilings is not None:
        cells[1] = percent(ceilings.share_of_read(cost, median))
    if cost.flops:
        cells[2] = number(cost.tflops(median))
        if ceilings is not None:
            cells[3] = percent(ceilings.share_of_compute(cost, median))
    if row.relative is not None:
        cells[4] = number(row.relative)
    return cells[1::2] + cells[4:] if brief else cells


def _table(label: str, by: str, *figures: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(label, overflow="fold")
    table.add_column(by, no_wrap=True)
    for figure in figures:
        table.add_column(figure, justify="right", no_wrap=True)
    return table


def _remarks(report: Report) -> list[str]:
    """What to mind when reading the tables."""
    lines = []
    if any(row.samples.cold for row in report.results):
        lines.append(
            "* one sample: the first call took longer than the budget; --seconds gives it more"
        )
    if report.interrupted:
        lines.append("interrupted: what is missing was not measured")
    return ["", *lines] if lines else []


def _mark(row: Result) -> str:
    return "*" if row.samples.cold else ""


def _spread(row: Result) -> str:
    """Half the width of the middle half of the samples."""
    return "" if len(row.samples.seconds) == 1 else f"±{row.samples.spread / 2:.0%}"


def number(value: float) -> str:
    """Three digits that matter, without an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(places, 6)}f}"


def percent(share: float) -> str:
    """A share, with a digit after the point where it is small."""
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}"


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    size, unit = next((pair for pair in _TIMES if seconds >= pair[0]), _TIMES[-1])
    return f"{number(seconds / size)} {unit}"
