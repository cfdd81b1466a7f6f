"""Speeds in README and docs equal the speeds in the linked runs."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "docs" / "bench.md"]
CLAIM = re.compile(
    r"^\| [^|]*(prefill|decode)[^|]* \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|[^\n]*"
    r"\[JSON\]\(([\w./-]+\.json)\) \|$",
    re.MULTILINE,
)


def _speeds(run: Path, regime: str) -> tuple[float, float]:
    """Tokens a second of ours and of llama.cpp."""
    rows = [row for row in json.loads(run.read_text())["results"] if row["regime"] == regime]
    (ours,) = (row["tokens_per_second"] for row in rows if row["by"] == "cpu")
    (theirs,) = (row["tokens_per_second"] for row in rows if row["by"].startswith("llama.cpp"))
    return ours, theirs


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_told_speeds_were_measured(page: Path) -> None:
    claims = CLAIM.findall(page.read_text())
    assert claims
    for regime, ours, theirs, ratio, link in claims:
        measured = _speeds(page.parent / link, regime)
        found = (*measured, measured[0] / measured[1])
        # Three digits are told.
        assert [float(ours), float(theirs), float(ratio)] == pytest.approx(found, rel=5e-3), link
