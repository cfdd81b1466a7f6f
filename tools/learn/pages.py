"""The output that a page of docs/learn shows below its program."""

import re
from pathlib import Path

LEARN = Path(__file__).parents[2] / "docs" / "learn"

_PRINTED = re.compile(r"^prints\n\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def printed(page: str) -> list[str]:
    """Return the lines that the program of a page prints. A test of the docs runs the program."""
    found = _PRINTED.search((LEARN / f"{page}.md").read_text(encoding="utf-8"))
    assert found is not None, page
    return found[1].splitlines()
