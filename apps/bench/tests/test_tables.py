"""Tables of a report."""

import io
import sys

import pytest
from rich.console import Console
from tinyllm_bench.ceilings import Ceilings
from tinyllm_bench.cost import Cost
from tinyllm_bench.machine import Machine
from tinyllm_bench.report.report import ModelInfo, Report
from tinyllm_bench.report.tables import (
    duration,
    new_table,
    number,
    percent,
    progress_line,
    report_console,
    tables,
)
from tinyllm_bench.rounds import Case, Failure, Result, Samples
from tinyllm_bench.settings import Settings

MACHINE = Machine("A CPU", 2, ("avx2",), 1, 2, "Linux x86_64", "cpu", "A CPU", "0.32", "3.11")


@pytest.fixture
def report() -> Report:
    """Report of a machine that reads 10 GB/s and computes 2 TFLOP/s."""
    found = Report(
        Settings(),
        MACHINE,
        "0",
        ModelInfo("pico", "4-bit", 3_000_000),
        Ceilings(10.0, 2.0, "r", "c"),
    )
    cost = Cost(1_000_000_000, 500_000_000_000)  # bytes and FLOP of a call
    found.results += [  # the last value is the speed relative to the reference
        Result(Case("linear", "q 2x2", "decode", 1), "reference", Samples((1.0, 1.0)), cost, 1.0),
        Result(Case("linear", "q 2x2", "decode", 1), "mlx", Samples((0.4, 0.5, 0.6)), cost, 2.0),
        Result(Case("swiglu", "2", "decode", 1), "mlx", Samples((9.0,), cold=True), Cost(9), None),
        Result(Case("model", "8 tokens", "prefill", 8), "mlx", Samples((0.25,)), cost, None),
        Result(
            Case("model", "after 8 tokens", "decode", 1),
            "mlx",
            Samples((0.5,), host=(0.002, 0.003, 0.004)),
            cost,
            None,
        ),
    ]
    return found


def lines(report: Report, width: int, *, brief: bool) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(tables(report, brief=brief))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_row_says_time_spread_speeds_and_shares(report: Report) -> None:
    (row,) = (line for line in lines(report, 118, brief=False) if "500 ms" in line and "±" in line)
    # After the median and half the interquartile range: 2 GB/s of 10, 1 TFLOP/s of 2, and the speed
    # relative to the reference.
    figures = ["mlx", "500", "ms", "±10%", "2.00", "20%", "1.00", "50%", "2.00"]
    assert row.split() == figures


def test_a_model_is_shown_in_tokens_a_second(report: Report) -> None:
    shown = lines(report, 118, brief=False)
    (prefill,) = (line for line in shown if line.startswith("prefill, 8 tokens"))
    assert prefill.split()[3:7] == ["mlx", "32.0", "250", "ms"]
    (decode,) = (line for line in shown if line.startswith("decode, after 8 tokens"))
    assert decode.split()[4:8] == ["mlx", "2.00", "3.00", "ms"]  # the median time of the host


def test_a_cold_sample_is_marked_and_explained(report: Report) -> None:
    shown = lines(report, 118, brief=False)
    assert any("9.00 s*" in line for line in shown)
    assert any(line.startswith("* one sample") for line in shown)


def test_a_narrow_terminal_gets_shares_without_speeds(report: Report) -> None:
    shown = lines(report, 80, brief=True)
    assert max(map(len, shown)) <= 80
    head = next(line for line in shown if line.startswith("operation"))
    assert "GB/s" not in head
    assert head.split()[-5:] == ["read", "of", "peak", "x", "ref"]


def test_a_failure_is_a_row_of_its_case(report: Report) -> None:
    case = Case("model", "8 tokens", "prefill", 8)
    report.failures.append(Failure(case, "llama.cpp Q4_0", "ended by SIGSEGV"))
    shown = lines(report, 118, brief=False)
    place = next(i for i, line in enumerate(shown) if line.startswith("prefill, 8 tokens"))
    assert shown[place + 1].split()[-3:] == ["llama.cpp", "Q4_0", "failed"]
    # The reason is wrapped in the first column, which ends at two spaces.
    reason = " ".join(line.split("  ")[0] for line in shown[place + 1 : place + 4])
    assert reason.startswith("failed: ended by SIGSEGV")


def test_an_interrupted_report_says_so(report: Report) -> None:
    report.interrupted = True
    report.ceilings = None
    shown = lines(report, 118, brief=False)
    assert shown[-1].startswith("interrupted")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (0.00123456, "0.00123"), (0.5, "0.500"), (12.34, "12.3"), (12345.6, "12,346")],
)
def test_numbers_have_three_digits_that_matter(value: float, shown: str) -> None:
    assert number(value) == shown


def test_shares_and_times_have_the_unit_that_suits_them() -> None:
    assert [percent(x) for x in (0.001, 0.0994, 0.42)] == ["0.1%", "9.9%", "42%"]
    assert [duration(x) for x in (2.0, 0.0123, 4.56e-6, 1e-8)] == [
        "2.00 s",
        "12.3 ms",
        "4.56 us",
        "0.0100 us",
    ]


NAME = "ck/a[/b]c[mlx]:cat:"  # closing a tag that is not open is an error of rich's markup


def test_names_with_brackets_and_colons_are_printed_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = new_table((NAME,), ("tokens/s",))
    table.add_row(NAME, "1")
    console = report_console()
    console.print(f"a machine; {NAME}")
    console.print(table)
    heading, *shown = capsys.readouterr().out.splitlines()
    assert heading == f"a machine; {NAME}"
    assert [line.split()[0] for line in shown] == [NAME, NAME]


def test_the_progress_shows_a_name_with_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    class FakeTerminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := FakeTerminal())
    with progress_line(2) as progress:
        progress("a[/b]", 1)
    assert "a[/b]" in terminal.getvalue()
