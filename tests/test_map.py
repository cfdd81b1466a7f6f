"""docs/map.md lists the files that a token passes through; tools/walk.py traces them."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import walk as tool
from tinyllm_ops import PageTable
from tinyllm_qwen import Stats

ROOT = Path(__file__).parents[1]
LIMITS = {"token": 20, "step": 28}
LAYERS = {
    "tinyllm_layers/attention.py": "GroupedQueryAttention.__call__",
    "tinyllm_layers/decoder.py": "DecoderLayer.__call__",
    "tinyllm_layers/mlp.py": "MLP.__call__",
    "tinyllm_layers/norm.py": "RMSNorm.__call__",
}


HEADINGS = {"prompt": tool.PROMPT, "token": tool.TOKEN, "step": tool.STEP}
WALKS = {"prompt": tool.prompt_walk, "token": tool.token_walk, "step": tool.step_walk}
_walks: dict[str, Mapping[str, set[str]]] = {}


def walk(name: str) -> Mapping[str, set[str]]:
    if name not in _walks:
        _walks[name] = WALKS[name]()
    return _walks[name]


@pytest.mark.parametrize("name", HEADINGS)
def test_the_page_lists_the_files_of_the_walk(name: str) -> None:
    assert tool.listed(HEADINGS[name]) == sorted(walk(name))


@pytest.mark.parametrize("name", LIMITS)
def test_a_walk_is_short(name: str) -> None:
    assert len(walk(name)) <= LIMITS[name], sorted(walk(name))


def test_the_readme_has_the_lengths_of_the_walks() -> None:
    feature = (ROOT / "README.md").read_text().split("- **Readable.**")[1].split("- **")[0]
    assert [int(count) for count in re.findall(r"through\s+(\d+)", feature)] == [*LIMITS.values()]


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("file", LAYERS)
def test_the_layers_are_what_runs(name: str, file: str) -> None:
    assert LAYERS[file] in walk(name)[file]


def test_the_page_lists_the_files_that_a_hybrid_adds() -> None:
    added = set(tool.hybrid_walk()) - set(walk("token"))
    assert tool.listed(tool.HYBRID) == sorted(added)


def test_a_section_that_is_missing_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n## {tool.TOKEN}\n\n- `tinyllm_ops/mlx.py`\n- no file\n\n## Next\n")
    assert tool.listed(tool.TOKEN, page) == ["tinyllm_ops/mlx.py"]
    with pytest.raises(ValueError, match="expected a section"):
        tool.listed(tool.STEP, page)


def test_constructors_of_dataclasses_are_counted() -> None:
    table = tool.trace(lambda: PageTable.of([([0], 0, 1)], num_pages=1, page_size=1))
    assert "PageTable.__init__" in table["tinyllm_ops/page_table.py"]
    stats = tool.trace(lambda: Stats(1, 0, 1, 0.0, 0.0))
    assert stats == {"tinyllm_qwen/text/output.py": {"Stats.__init__"}}


def test_a_trace_ends_with_its_call() -> None:
    def fails() -> None:
        raise KeyError("x")

    before = sys.getprofile()
    with pytest.raises(KeyError):
        tool.trace(fails)
    assert sys.getprofile() is before
