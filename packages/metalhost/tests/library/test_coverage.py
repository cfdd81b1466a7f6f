"""Both copies of Metal's library, to execute and for clang, have the same functions, all tested."""

import re
from pathlib import Path

import pytest
from metalhost import metal_kernel
from metalhost.compilation.native_files import ADDRESS_SPACES, MSL

TESTS = "".join(
    path.read_text()
    for path in Path(__file__).parents[1].rglob("test_*.py")
    if path != Path(__file__)
)
# Names that the headers define only for themselves.
INTERNAL = {
    "atomic_read",
    "atomic_replace",
    "simdgroup_offset",
    "lane_of",
    "position_of",
    "append",
    "fold",
    "from",
    "own",
    "active",
    "first",
    "zero",
    "one",
    "ones",
    "low",
    "high",
    "decode",
    "encode",
    "operator",
    "threadgroup_variable",
    "make",
}


def names(folder: Path) -> set[str]:
    """Return the functions that the headers of a folder define or declare, also by macros."""
    found: set[str] = set()
    for header in folder.iterdir():
        if header.name in ("vec.h", "metal_types"):
            continue  # types, whose members are not named in tests
        text = re.sub(r"//[^\n]*", "", header.read_text())
        found |= set(re.findall(r"METAL_(?:UNARY|BINARY|TEST)\((\w+)", text))
        for kind, name in re.findall(r"METAL_(REDUCTION|PREFIX|FETCH)\((\w+)", text):
            prefix = "quad" if "quad" in header.name else "simd"
            found |= {
                "REDUCTION": {f"{prefix}_{name}"},
                "PREFIX": {f"simd_prefix_{end}_{name}" for end in ("inclusive", "exclusive")},
                "FETCH": {f"atomic_fetch_{name}_explicit"},
            }[kind]
        typed = r"(?:\b(?:T|void|bool|int|uint|ulong|float|half|bfloat|simd_vote|Index|uint16_t"
        typed += r"|bfloat16_t|__VA_ARGS__|vote_t)|>|T>>)[&*]? (\w+)\("
        found |= set(re.findall(typed, text))
    # In the macros, `name` is a parameter.
    return {name for name in found - INTERNAL if not name.endswith("name")}


def test_both_copies_have_the_same_functions() -> None:
    assert names(MSL) == names(ADDRESS_SPACES)
    assert {path.name for path in ADDRESS_SPACES.iterdir()} <= {path.name for path in MSL.iterdir()}


@pytest.mark.parametrize("name", sorted(names(MSL)))
def test_every_function_is_in_a_test(name: str) -> None:
    plain = name.removeprefix("atomic_fetch_").removesuffix("_explicit")
    assert re.search(rf"\b{name}\b|\"{plain}\"", TESTS), name


def test_the_functions_are_found() -> None:
    assert {"exp", "simd_sum", "quad_max", "mulhi", "simdgroup_load", "elem_to_loc"} <= names(MSL)
    assert len(names(MSL)) > 130


HEADERS = sorted(path.name for path in MSL.iterdir() if path.name.startswith("metal_"))


def test_each_header_can_be_included_by_its_name(host: None) -> None:
    header = "".join(f"#include <{name}>\n" for name in HEADERS)
    kernel = metal_kernel("included", [], ["y"], "y[thread_position_in_grid.x] = 1;", header)
    (y,) = kernel(
        inputs=[],
        output_shapes=[(1,)],
        output_dtypes=["float32"],
        grid=(1, 1, 1),
        threadgroup=(1, 1, 1),
    )
    assert y[0] == 1
