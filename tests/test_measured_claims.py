"""Speeds in README and docs equal the speeds that were measured."""

import json
import re
from pathlib import Path

import pytest
from measured import caches, runs
from readme.speed import PROGRAMS, all_groups
from tinyllm_bench.report.tables import number

ROOT = Path(__file__).parents[1]
BENCH = ROOT / "docs" / "bench.md"
CLAIM = re.compile(
    r"^\| [^|]*(prefill|decode)[^|]* \| ([\d.,]+) \| ([\d.,]+) \| ([\d.]+) \|[^\n]*"
    r"\[JSON\]\(([\w./-]+\.json)\) \|$"
)
PICO = re.compile(r"^\| (prefill|decode), [^|]* \|(?: ([\d.,]+) \|){5}$")
PICO_COLUMNS = ("reference", "mlx", "cpu", "mlx-lm", "llama.cpp Q4_0")


def speeds(run: Path, regime: str) -> dict[str, float]:
    """Return tokens per second of the model by implementation."""
    rows = json.loads(run.read_text())["results"]
    return {
        row["by"]: row["tokens_per_second"]
        for row in rows
        if row["what"] == "model" and row["regime"] == regime
    }


def rows_with_speeds(page: str) -> list[str]:
    """Return the table rows that begin with a prefill or a decode."""
    return [line for line in page.splitlines() if re.match(r"\| [^|]*(prefill|decode)", line)]


def check(row: str, folder: Path) -> None:
    """Check a row of a table. A row of an unknown form fails."""
    numbers = [float(text.replace(",", "")) for text in re.findall(r"(?<=\| )[\d.,]+(?= \|)", row)]
    if PICO.match(row):
        regime = row.split()[1].rstrip(",")
        found = speeds(ROOT / "docs" / "measured" / "pico-128.json", regime)
        assert numbers == pytest.approx([found[name] for name in PICO_COLUMNS], rel=5e-3), row
        return
    claim = CLAIM.match(row)
    assert claim, f"a speed that no run is linked to, or in an unknown form: {row}"
    regime, ours, theirs, ratio, link = claim.groups()
    found = speeds(folder / link, regime)
    (peer,) = (speed for name, speed in found.items() if name.startswith("llama.cpp"))
    expected = (found["cpu"], peer, found["cpu"] / peer)
    told = [float(text.replace(",", "")) for text in (ours, theirs, ratio)]
    assert told == pytest.approx(expected, rel=5e-3), row  # three digits are shown


def test_speeds_in_tables_were_measured() -> None:
    rows = rows_with_speeds(BENCH.read_text())
    assert len(rows) >= 10
    for row in rows:
        check(row, BENCH.parent)


def test_the_readme_names_every_case_in_which_another_program_is_faster() -> None:
    head = "| tokens/s | tinyllm | llama.cpp | OpenVINO |\n|---|---:|---:|---:|\n"
    table = (ROOT / "README.md").read_text().split(head)[1].split("\n\n")[0]
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()]
    lost = [group for group in all_groups() if group.is_lost]
    assert cells == [
        [group.label, *(number(group.found[by]) if by in group.found else "" for by in PROGRAMS)]
        for group in lost
    ]


def test_the_readme_has_the_measured_ratios() -> None:
    found = {group.label: group.found for group in all_groups()}
    text = " ".join((ROOT / "README.md").read_text().split())
    prompt, decode = re.findall(r"([\d.]+) times as fast", text)
    for told, case in ((prompt, "prompt of 512"), (decode, "decode, empty cache")):
        ratio = found[case]["cpu"] / found[case]["llama.cpp"]
        assert float(told) == pytest.approx(ratio, rel=1e-2), case


@pytest.mark.parametrize(
    "row",
    [
        "| decode | 96.2 | 70.9 | 1.36 | [JSON](docs/measured/qwen3-4b-4bit-empty.json) |",
        "| decode | 97.2 | 70.9 | 1.36 | [JSON](docs/measured/qwen3-0.6b-4bit-empty.json) |",
        "| decode | 96.2 | 70.9 | 1.46 | [JSON](docs/measured/qwen3-0.6b-4bit-empty.json) |",
        "| decode | 96.2 | 70.9 | 1.36 | |",
        "| decode | 96.2/s | 70.9 | 1.36 | [JSON](docs/measured/qwen3-0.6b-4bit-empty.json) |",
        "| prefill, 128 tokens | 288 | 265 | 7,974 | 265 | 12,599 |",
    ],
)
def test_a_wrong_or_unknown_row_fails(row: str) -> None:
    with pytest.raises(AssertionError):
        check(row, ROOT)


def test_the_tables_of_all_runs_are_generated() -> None:
    assert runs.PAGE.read_text() == runs.render(), "run tools/measured/runs.py"


def test_the_table_of_caches_has_the_bytes_that_caches_allocate() -> None:
    page = (ROOT / "docs" / "measured.md").read_text()
    assert f"\n{caches.table()}\n" in page, "run tools/measured/make.py caches"
