"""Every public name is on an API page, and every entry of a page exists."""

import ast
import dataclasses
import enum
import importlib.util
import inspect
import json
import re
from pathlib import Path

import pytest
from check_site import EXPECTED, changed, faults

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


def exported(package: str) -> dict[str, object]:
    module = importlib.import_module(package)
    return {name: getattr(module, name) for name in module.__all__}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_dataclass_has_no_private_parameter(package: str) -> None:
    for name, found in exported(package).items():
        if inspect.isclass(found) and dataclasses.is_dataclass(found):
            given = [field.name for field in dataclasses.fields(found) if field.init]
            assert not [field for field in given if field.startswith("_")], name


@pytest.mark.parametrize("package", PACKAGES)
def test_members_have_docstrings_because_pages_leave_out_others(package: str) -> None:
    for name, found in exported(package).items():
        if inspect.isclass(found) and issubclass(found, enum.Enum):
            (node,) = ast.parse(inspect.getsource(found)).body
            assert isinstance(node, ast.ClassDef)
            pairs = zip(node.body, [*node.body[1:], None], strict=True)
            documented = [
                each.targets[0].id
                for each, after in pairs
                if isinstance(each, ast.Assign)
                and isinstance(each.targets[0], ast.Name)
                and isinstance(after, ast.Expr)
            ]
            assert documented == list(found.__members__), name


def test_types_that_the_renderer_changed_are_found(tmp_path: Path) -> None:
    tags = '<span class="n">Float</span><span class="p">[</span>'
    right = f"{tags}mx.array, <span>&quot;B L&quot;</span>] Bool[mx.array, '*b'] Int[mx.array, '']"
    assert changed(right) == []
    wrong = f"{right} {tags}mx.array, O] | None, Shaped[array, 'O'], UInt8[mx.array, ...]"
    assert changed(wrong) == ["Float[mx.array, O]", "Shaped[array, 'O']", "UInt8[mx.array, ...]"]
    items = [{"location": page, "title": term, "text": ""} for term, page in EXPECTED.items()]
    (tmp_path / "search.json").write_text(json.dumps({"items": items}))
    assert "no pages in api/" in faults(tmp_path)[0]
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "page.html").write_text(right)
    assert faults(tmp_path) == []
    (tmp_path / "api" / "page.html").write_text(wrong)
    assert faults(tmp_path)[0].endswith("as in the source, got Float[mx.array, O]")
