"""Python examples in the documentation run and print the output that their page shows.

The examples of one page share their names, from top to bottom, as a reader would type them. A
comment before an example marks it as not run here, with the reason (a network, a checkpoint). The
rendered page does not show the comment:

    <!-- not run: it downloads 0.4 GB -->

The engines of examples compute with the backend that `serve` chooses, because readers copy the
examples: without `ops`, `load` takes the slow reference.
"""

import contextlib
import io
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from tinyllm_engine import Engine
from tinyllm_kernels import BackendChoice
from tinyllm_ops.testing import without_checks

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/*/README.md")])
EXAMPLE = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n+)?"
    r"```python\n(?P<code>.*?)^```\n"
    r"(?:\s*prints\s+```text\n(?P<printed>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)
FENCE = re.compile(r"^ *(?:```+|~~~+) *(?:python|py)\w*", re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """A Python block of a page, the output that it shows, and the reason why it is not run."""

    code: str
    line: int
    printed: str | None
    reason: str | None

    def run(self, page: Path, names: dict[str, object]) -> str:
        """Execute the block with the names of earlier blocks of the page; return its output."""
        # Empty lines before the code, so that a traceback has the line numbers of the page.
        program = compile("\n" * self.line + self.code, str(page), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(program, names)
        return printed.getvalue()


def examples(text: str) -> list[Example]:
    """Return the blocks of a page, in order."""
    return [
        Example(
            code=found["code"],
            line=text.count("\n", 0, found.start("code")),
            printed=found["printed"],
            reason=found["reason"],
        )
        for found in EXAMPLE.finditer(text)
    ]


WITH_EXAMPLES = [page for page in PAGES if examples(page.read_text(encoding="utf-8"))]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=name)
def test_the_examples_of_a_page_run_and_print_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    with without_checks():  # as for readers; the checks take half of the time
        for example in examples(page.read_text(encoding="utf-8")):
            if example.reason is None:
                printed = example.run(page, names)
                assert example.printed in (None, printed)
    if "REFERENCE" not in names:  # a page that names the reference explains its formulas
        engines = [value for value in names.values() if isinstance(value, Engine)]
        assert {engine.model.ops.name for engine in engines} <= {BackendChoice.choose().ops.name}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_python_block_is_spelled_so_that_it_would_be_passed_over(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(FENCE.findall(text)) == len(examples(text))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_reason_for_not_running_stands_alone(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    marked = sum(example.reason is not None for example in examples(text))
    assert text.count("<!-- not run:") == marked
