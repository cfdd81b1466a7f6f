"""Every public name has its place on an API page."""

import importlib
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[1] / "docs" / "api"


@pytest.mark.parametrize("package", ["tinyllm_ops", "tinyllm_layers", "tinyllm_qwen", "metalhost"])
def test_the_page_of_a_package_names_what_it_exports(package: str) -> None:
    # By its module: "tinyllm_ops.rms_norm" is a function to Python and a file to the renderer.
    page = (PAGES / f"{package}.md").read_text().splitlines()
    named = {line.rsplit(".", 1)[1] for line in page if line.startswith(f"::: {package}.")}
    assert named >= set(importlib.import_module(package).__all__)
