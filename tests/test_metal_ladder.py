"""The ladders in the documentation: each simpler text, in its kernel's place, is right."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "packages" / "tinyllm-kernels" / "tools" / "metal_kernels"
PAGES = sorted((ROOT / "docs" / "kernels").glob("metal*.md"))


# On a Mac, too, rungs would run under metalhost, which is for Linux.
@pytest.mark.skipif(sys.platform == "darwin", reason="rungs run under metalhost")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_rung_is_right(page: Path) -> None:
    command = [sys.executable, str(TOOL), "ladder", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == page.read_text().count("```metal") > 0
