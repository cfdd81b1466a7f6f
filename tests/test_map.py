"""docs/map.md lists the files that a token passes through; tools/walk.py traces them."""

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "walk.py"
LIMITS = {"token": 20, "step": 25}
LAYERS = {
    "tinyllm_layers/attention.py": "GroupedQueryAttention.__call__",
    "tinyllm_layers/decoder.py": "DecoderLayer.__call__",
    "tinyllm_layers/mlp.py": "MLP.__call__",
    "tinyllm_layers/norm.py": "RMSNorm.__call__",
}


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("walk", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["walk"] = module
    spec.loader.exec_module(module)
    return module


WALK = load_tool()
HEADINGS = {"token": WALK.TOKEN, "step": WALK.STEP}
_walks: dict[str, Mapping[str, set[str]]] = {}


def walk(name: str) -> Mapping[str, set[str]]:
    if name not in _walks:
        _walks[name] = {"token": WALK.token_walk, "step": WALK.step_walk}[name]()
    return _walks[name]


@pytest.mark.parametrize("name", HEADINGS)
def test_the_page_lists_the_files_of_the_walk(name: str) -> None:
    assert WALK.listed(HEADINGS[name]) == sorted(walk(name))


@pytest.mark.parametrize("name", HEADINGS)
def test_a_walk_is_short(name: str) -> None:
    assert len(walk(name)) <= LIMITS[name], sorted(walk(name))


@pytest.mark.parametrize("name", HEADINGS)
@pytest.mark.parametrize("file", LAYERS)
def test_the_layers_are_what_runs(name: str, file: str) -> None:
    assert LAYERS[file] in walk(name)[file]


def test_the_page_lists_the_files_that_a_hybrid_adds() -> None:
    added = set(WALK.hybrid_walk()) - set(walk("token"))
    assert WALK.listed(WALK.HYBRID) == sorted(added)


def test_a_section_that_is_missing_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n## {WALK.TOKEN}\n\n- `tinyllm_ops/mlx.py`\n- no file\n\n## Next\n")
    assert WALK.listed(WALK.TOKEN, page) == ["tinyllm_ops/mlx.py"]
    with pytest.raises(ValueError, match="expected a section"):
        WALK.listed(WALK.STEP, page)


def test_a_trace_ends_with_its_call() -> None:
    def fails() -> None:
        raise KeyError("x")

    before = sys.getprofile()
    with pytest.raises(KeyError):
        WALK.trace(fails)
    assert sys.getprofile() is before
