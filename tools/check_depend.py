"""Executes every command of docs/depend.md, each block in an empty project of its own.

    uv run --no-sync python tools/check_depend.py

A project has a pyproject.toml, as `uv init --bare` writes it, and an active virtual environment
with pip. $TINYLLM is this clone, $GIT the same as a git address, so that what is installed from
git is the last commit.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "depend.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run(command: list[str], cwd: Path, environ: dict[str, str]) -> None:
    """Run a command quietly; stop with its whole output if it fails."""
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
    """The variables of a shell in which the project's environment for pip is active.

    uv's commands pass it by: they make `.venv`, as they do in any project.
    """
    venv = project / "venv"
    return os.environ | {
        "TINYLLM": str(ROOT),
        "GIT": f"git+file://{ROOT}",
        "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(venv),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def main() -> None:
    """Execute the blocks in order."""
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
