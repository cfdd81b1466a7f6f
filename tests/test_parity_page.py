"""docs/parity.md sums up the rows of docs/parity-tables.md, which tools/parity.py writes."""

import re
from pathlib import Path

import parity
import pytest
from parity_models import FAMILIES, FORMATS
from tinyllm_ops.testing import TOLERANCE

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GREEDY = 64


TABLES = (DOCS / "parity-tables.md").read_text(encoding="utf-8")
ROWS = parity.read_tables(TABLES)


def test_the_summary_is_that_of_the_tables() -> None:
    assert parity.summary(ROWS) in (DOCS / "parity.md").read_text(encoding="utf-8")


def test_the_tables_are_read_as_they_are_written() -> None:
    assert parity.tables(ROWS) == TABLES


def test_the_tables_have_every_family_and_format() -> None:
    models = {f"{family}, {form}" for family in FAMILIES for form in FORMATS}
    assert {row.model for row in ROWS if row.oracle == "mlx-lm"} == models
    golden = {folder.name for folder in parity.GOLDENS.iterdir()}
    assert {row.model for row in ROWS if row.oracle == "transformers"} == golden


@pytest.mark.parametrize("ops", ["reference", "mlx", "cpu"])
def test_every_model_is_within_the_float32_bar(ops: str) -> None:
    own = [row for row in ROWS if row.ops == ops]
    assert own
    assert max(row.logits["float32"] for row in own) < 1e-4
    assert min(row.greedy for row in own) == GREEDY


def test_the_page_has_the_tolerances_of_the_code() -> None:
    rows = {}
    for line in (DOCS / "parity.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[-1].startswith("`t"):
            rows[cells[-1].strip("`")] = [float(cell) for cell in cells[1:4]]
    text = (ROOT / "tests" / "test_mlx_lm_parity.py").read_text(encoding="utf-8")
    bars = [float(bar) for bar in re.findall(r'"(?:b?float\d+)": ([\de.-]+)', text)]
    assert rows == {
        "tinyllm_ops.testing.TOLERANCE": list(TOLERANCE.values()),
        "tests/test_mlx_lm_parity.py": bars,
    }
