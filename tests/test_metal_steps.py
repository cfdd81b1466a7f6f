"""Optimization steps in the documentation: each simpler kernel gives right results."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "packages" / "tinyllm-kernels" / "tools" / "metal_kernels"
PAGES = sorted((ROOT / "docs" / "kernels" / "metal").glob("*.md"))
PAGES_WITH_STEPS = [page for page in PAGES if "```cpp" in page.read_text(encoding="utf-8")]
KERNELS = ROOT / "packages" / "tinyllm-kernels" / "src" / "tinyllm_kernels" / "metal"
LONG = ("decode.md", "tiles.md")  # with 23 of the 36 seconds of all quick steps


# Steps always run under metalhost, which needs Linux.
@pytest.mark.skipif(sys.platform == "darwin", reason="steps run under metalhost")
@pytest.mark.parametrize(
    "options", [["--quick"], pytest.param([], marks=pytest.mark.exhaustive)], ids=" ".join
)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.exhaustive if page.name in LONG else ())
        for page in PAGES_WITH_STEPS
    ],
    ids=lambda page: page.name,
)
def test_every_step_is_right(page: Path, options: list[str]) -> None:
    command = [sys.executable, str(TOOL), "steps", *options, str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == page.read_text().count("```cpp") > 0


def test_every_kernel_has_a_page_in_the_table() -> None:
    table = (ROOT / "docs" / "kernels" / "metal.md").read_text(encoding="utf-8")
    assert all(f"(metal/{page.name}" in table for page in PAGES)
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    ops = {folder.name for folder in KERNELS.iterdir() if (folder / "__init__.py").is_file()}
    assert {op for op in ops if f"`metal/{op}" not in pages} == set()
