"""Lets `uv run pytest` install the dependencies of the tests on its first run.

`uv run chat` installs neither them nor the linters: they are 70 further packages. This module is a
plugin of pytest, which is installed with the workspace. It does nothing in an environment made by
`uv run --isolated --package ...`, which has the dependencies of one member.
"""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NEEDED = ("beartype", "hypothesis", "mlx_lm", "schemathesis")
"""Modules that the group dev has, and the environment of `uv run chat` has not."""
RESTARTED = "TINYLLM_PYTEST_RESTARTED"
"""Environment variable of a pytest that this module has started."""


def command(arguments: list[str]) -> list[str] | None:
    """Return the command that runs pytest with the group dev, or None if pytest can go on.

    Args:
        arguments: the arguments of pytest.
    """
    if Path(sys.prefix).resolve() != ROOT / ".venv" or all(map(find_spec, NEEDED)):
        return None
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        return None
    return [uv, "run", "--project", str(ROOT), "--group", "dev", "pytest", *arguments]


def restart() -> None:
    """Replace this process by pytest with the group dev, if modules are missing.

    Plugins are imported before pytest captures its output, so the new process has the terminal. The
    process ends if modules are still missing after a restart, as with UV_NO_SYNC=1.
    """
    if Path(sys.argv[0]).name not in ("pytest", "__main__.py"):
        return
    again = command(sys.argv[1:])
    restarted = os.environ.pop(RESTARTED, None)
    if again is not None:
        if restarted:
            missing = ", ".join(name for name in NEEDED if find_spec(name) is None)
            sys.exit(
                f"pytest: uv run --group dev has not installed {missing}: unset UV_NO_SYNC, or run "
                "uv sync --group dev"
            )
        os.environ[RESTARTED] = "1"
        sys.stderr.write("pytest: installing the group dev of pyproject.toml first\n")
        sys.stderr.flush()
        os.execv(again[0], again)


restart()
