"""Structure of the C++ sources: folders, direction of includes, symbols of instruction sets."""

import re
from pathlib import Path
from types import ModuleType

import pytest

NATIVE = Path(__file__).parent.parent / "native"

FOLDERS = (
    "types.h",
    "isa",
    "runtime",
    "rows",
    "matmul",
    "attention",
    "recurrent",
    "dispatch",
    "layers",
    "mlx",
    "check",
    "bench",
)
"""The file types.h and the folders. Each may include itself and the entries before it."""

SOURCES = sorted(path for path in NATIVE.rglob("*") if path.suffix in {".h", ".cpp"})

pytestmark = pytest.mark.skipif(
    not NATIVE.is_dir(), reason="an installed package has no C++ sources beside its tests"
)


def top_folder(path: str) -> str:
    return path.split("/", maxsplit=1)[0]


def includes(source: Path) -> list[str]:
    return re.findall(r'^#include "(.+)"', source.read_text(), re.MULTILINE)


def name(source: Path) -> str:
    return source.relative_to(NATIVE).as_posix()


@pytest.mark.parametrize("source", SOURCES, ids=name)
def test_includes_run_one_way(source: Path) -> None:
    own = FOLDERS.index(top_folder(name(source)))
    for included in includes(source):
        assert (NATIVE / included).is_file(), f"{included} does not exist"
        assert FOLDERS.index(top_folder(included)) <= own, f"{included} is in a later folder"


def test_no_header_includes_itself() -> None:
    headers = {name(source): includes(source) for source in SOURCES}

    def reach(header: str, path: tuple[str, ...]) -> None:
        assert header not in path, " -> ".join((*path, header))
        for included in headers[header]:
            reach(included, (*path, header))

    for header in headers:
        reach(header, ())


def test_mlx_is_included_only_in_its_folder() -> None:
    pattern = re.compile(r"#include <(mlx|nanobind)/")
    users = {top_folder(name(source)) for source in SOURCES if pattern.search(source.read_text())}
    assert users == {"mlx"}


def test_folders_are_small() -> None:
    folders = {path.parent for path in SOURCES}
    for folder in folders:
        assert len([path for path in folder.iterdir() if path.is_file()]) <= 16, folder
    assert len([path for path in NATIVE.iterdir() if path.is_file()]) <= 4


def test_instruction_sets_share_no_code(native: ModuleType) -> None:
    """The build recorded no weak symbol that two instruction sets define."""
    assert native.__file__ is not None
    assert Path(native.__file__).with_name("weak_symbols.txt").read_text() == ""
