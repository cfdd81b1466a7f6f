"""C++ files that come with the package."""

import functools
from pathlib import Path

NATIVE = Path(__file__).parents[1] / "native"
RUNTIME = NATIVE / "runtime"
"""Sources of the runtime, which executes a kernel."""
MSL = NATIVE / "msl"
"""Headers that implement Metal's library, for the unit to execute."""
ADDRESS_SPACES = NATIVE / "address_spaces"
"""Headers that declare Metal's library with address spaces, for clang's type checks."""


@functools.cache
def contents(folder: Path) -> str:
    """Return the relative paths and texts of all files under a folder, for a cache key."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return "".join(f"{path.relative_to(folder)}\n{path.read_text()}" for path in files)
