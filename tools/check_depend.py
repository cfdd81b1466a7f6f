"""Executes every `sh` block of docs/depend.md, each in an empty project.

    uv run --no-sync python tools/check_depend.py

A project has the pyproject.toml of `uv init --bare` and an active virtual environment with pip.
$TINYLLM is this clone and $GIT its git address, so that git installs the last commit. Kernels are
compiled without optimization and for two instruction sets, because only the commands are checked.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "depend.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run(command: list[str], cwd: Path, environ: dict[str, str]) -> None:
    """Run a command quietly; if it fails, exit with its whole output."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nfailed ({done.returncode}): {command[-1]}")


def environment(project: Path) -> dict[str, str]:
    """Return the variables of a shell in which the project's environment for pip is active.

    uv's commands do not use that environment: they make `.venv`, as in any project.
    """
    venv = project / "venv"
    return os.environ | {
        "TINYLLM": str(ROOT),
        "GIT": f"git+file://{ROOT}",
        "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(venv),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "SKBUILD_CMAKE_DEFINE": "CMAKE_CXX_FLAGS_RELEASE=-O0;TINYLLM_ISAS=native",
    }


def main() -> None:
    """Execute the blocks in order."""
    if shutil.which("uv") is None:
        sys.exit("uv is not on the PATH: install it with `pip install uv`")
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    if not blocks:
        sys.exit(f"{PAGE}: expected blocks that start with ```sh, found none")
    with tempfile.TemporaryDirectory() as folder:
        for number, block in enumerate(blocks):
            project = Path(folder) / f"project-{number}"
            project.mkdir()
            plain = dict(os.environ)
            python = ["--python", sys.executable]
            run(["uv", "init", "--quiet", "--bare", *python, "--vcs", "none"], project, plain)
            run(["uv", "venv", "--quiet", "--seed", *python, "venv"], project, plain)
            run(["sh", "-euc", block], project, environment(project))
            print(f"{block.splitlines()[-1]}: as {PAGE.name} says", flush=True)


if __name__ == "__main__":
    main()
