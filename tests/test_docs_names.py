"""Pages are in the navigation and in the search index; names and shape letters exist."""

import importlib
import inspect
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from check_site import EXPECTED, faults, found

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.glob("**/*.md"), *ROOT.glob("*/*/README.md")])
DOTTED = re.compile(r"`((?:tinyllm_(?:ops|kernels|layers|qwen|engine)|metalhost)(?:\.\w+)+)`")
ARGUMENT = re.compile(rf"`(\w+)=` of {DOTTED.pattern}")
LETTER = re.compile(r"^\| ((?:`\*?\w+`(?:, )?)+) \|", re.MULTILINE)
SHAPE = re.compile(
    r"\b(?:Bool|Float|Float32|Integer|Int|Int32|UInt8|UInt32|Shaped)"
    r"\[[^\[\],]*mx\.array, \"([^\"]+)\""
)


def places(entry: object) -> Iterator[str]:
    """Yield the pages in a part of the navigation."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for value in entry.values():
            yield from places(value)
    elif isinstance(entry, list):
        for part in entry:
            yield from places(part)


def test_every_page_has_one_place_in_the_navigation() -> None:
    project = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    pages = sorted(str(page.relative_to(DOCS)) for page in DOCS.glob("**/*.md"))
    assert sorted(places(project["nav"])) == pages


def find(dotted: str) -> object:
    """Return the module, class, function or attribute of a dotted name."""
    package, *names = dotted.split(".")
    found: object = importlib.import_module(package)
    for place, part in enumerate(names):
        # Prefer an attribute to a module: tinyllm_ops.rms_norm is a function and also a file.
        if hasattr(found, part):
            found = getattr(found, part)
        else:
            found = importlib.import_module(".".join([package, *names[: place + 1]]))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_name_that_is_written_with_its_package_is_there(page: Path) -> None:
    for dotted in DOTTED.findall(page.read_text(encoding="utf-8")):
        find(dotted)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_argument_that_is_written_with_its_function_is_there(page: Path) -> None:
    for argument, dotted in ARGUMENT.findall(page.read_text(encoding="utf-8")):
        function = find(dotted)
        assert callable(function)
        assert argument in inspect.signature(function).parameters, f"{argument}= of {dotted}"


def test_every_letter_of_a_shape_is_in_the_notation() -> None:
    rows = LETTER.findall((DOCS / "notation.md").read_text(encoding="utf-8"))
    known = {letter for row in rows for letter in re.findall(r"\w+", row)}
    used = {
        letter
        for source in ROOT.glob("packages/*/src/**/*.py")
        for shape in SHAPE.findall(source.read_text(encoding="utf-8"))
        for letter in re.findall(r"(?<![\w{*.])[A-Z](?:kv|\w)?(?!\w)", shape)
    }
    assert used - known == set()


def test_a_page_that_the_index_lacks_is_reported(tmp_path: Path) -> None:
    items = [
        {"location": f"{page}#part", "title": "A title", "text": f"<p>{term.upper()}</p>"}
        for term, page in EXPECTED.items()
    ]
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "page.html").touch()
    for kept, wrong in ((items, []), (items[1:], ["prefill: expected engine.html in the index"])):
        (tmp_path / "search.json").write_text(json.dumps({"items": kept}))
        assert [each.partition(", got")[0] for each in faults(tmp_path)] == wrong
    assert found(items, "a title") == set(EXPECTED.values())


@pytest.mark.parametrize("page", sorted(set(EXPECTED.values())))
def test_the_search_expects_pages_that_exist(page: str) -> None:
    assert (DOCS / page).with_suffix(".md").exists()
