"""Structure of the C++ sources: folders, direction of includes, symbols of instruction sets."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

NATIVE = Path(__file__).parent.parent / "native"

FOLDERS = (
    "ceil_div.h",
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
"""Two files and the folders. Each may include itself and the entries before it."""

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


def test_vectors_are_cast_by_an_inlined_function() -> None:
    """Instruction sets share std::bit_cast in a build without optimization, which then crashes."""
    users = {name(source) for source in SOURCES if "std::bit_cast" in source.read_text()}
    assert users <= {"types.h", "isa/vectors.h"}  # plain numbers, and a comment


def test_folders_are_small() -> None:
    folders = {path.parent for path in SOURCES}
    for folder in folders:
        assert len([path for path in folder.iterdir() if path.is_file()]) <= 16, folder
    assert len([path for path in NATIVE.iterdir() if path.is_file()]) <= 4


def test_instruction_sets_share_no_code(native: ModuleType) -> None:
    """The build recorded no weak symbol that two instruction sets define."""
    assert native.__file__ is not None
    assert Path(native.__file__).with_name("weak_symbols.txt").read_text() == ""


def test_a_build_without_the_sets_of_the_processor_says_so(tmp_path: Path) -> None:
    """A clone that is copied to another machine has only the sets of the first machine."""
    compiler = shutil.which("c++")
    if compiler is None or sys.platform != "linux":
        pytest.skip("there is no C++ compiler, or no CPU backend")
    (tmp_path / "main.cpp").write_text(
        '#include "dispatch/kernel_table.h"\n'
        "#include <cstdio>\n"
        "int main() {\n"
        "  try { tinyllm::kernel_tables(); }\n"
        "  catch (const std::invalid_argument& error) { std::puts(error.what()); }\n"
        "}\n"
    )
    program = tmp_path / "program"
    sources = [str(NATIVE / "dispatch" / "dispatch.cpp"), str(tmp_path / "main.cpp")]
    flags = ["-std=c++20", "-include", "stdexcept", f"-I{NATIVE}", "-o", str(program)]
    subprocess.run([compiler, *flags, *sources], check=True, timeout=120)
    done = subprocess.run([program], capture_output=True, text=True, check=True, timeout=60)
    assert "built on another processor, without " in done.stdout
    assert "`uv sync --reinstall-package tinyllm-kernels`" in done.stdout
