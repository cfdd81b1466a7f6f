"""Every public name is on an API page, and every entry of a page exists."""

import importlib.util
import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[1] / "docs" / "api"
ENTRY = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


def entries(package: str) -> list[str]:
    return ENTRY.findall((PAGES / f"{package}.md").read_text(encoding="utf-8"))


PACKAGES = sorted(member.name.replace("-", "_") for member in PAGES.parents[1].glob("packages/*"))


@pytest.mark.parametrize("package", PACKAGES)
def test_the_page_of_a_package_names_what_it_exports(package: str) -> None:
    named = {entry.rsplit(".", 1)[1] for entry in entries(package)}
    assert named >= set(importlib.import_module(package).__all__)


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_every_entry_is_a_name_in_a_module(page: Path) -> None:
    for entry in entries(page.stem):
        # Look in the module first: the renderer reads "tinyllm_ops.linear" as a file.
        module, name = entry.rsplit(".", 1)
        found = name in vars(importlib.import_module(module))
        assert found or importlib.util.find_spec(entry) is not None, entry
