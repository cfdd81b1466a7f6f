"""Tools name a wrong argument in a message, without a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(folder: Path, tool: str, *options: str, path: str = "") -> tuple[int, str]:
    """Run a tool in a folder, with `path` as PATH, and return its code and its output."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / tool), *options],
        cwd=folder,
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stdout
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("random_checkpoint.py made --seed -1", "seed: expected 0 to 2^64 - 1, got -1"),
        ("replicas.py 3_replicas", "ROW: expected some of `serve`, 1 replica, 2 replicas, 2 rep"),
        ("check_site.py", "usage: check_site.py SITE"),
        ("check_site.py made", "made: expected a built site, found no search.json or no pages in"),
        ("pico/acceptance.py nosuch", "error: 'nosuch' is neither a folder here nor the name"),
        ("check_wheels.py", "uv is not on the PATH"),
        ("check_depend.py", "uv is not on the PATH"),
    ],
)
def test_a_wrong_argument_is_named(tmp_path: Path, command: str, message: str) -> None:
    code, output = run(tmp_path, *command.split())
    assert code in (1, 2)
    assert message in output
    assert not [*tmp_path.iterdir()]


def test_the_help_of_replicas_names_the_rows(tmp_path: Path) -> None:
    code, output = run(tmp_path, "replicas.py", "--help")
    assert code == 0
    assert "2 replicas, `--affinity 0`" in " ".join(output.split())


@pytest.mark.parametrize("name", ["qwen3-0.6b-4bit-batch-http", "roofline-qwen3-0.6b"])
def test_a_document_of_another_tool_is_not_drawn(tmp_path: Path, name: str) -> None:
    document = ROOT / "docs" / "measured" / f"{name}.json"
    code, output = run(tmp_path, "plot", str(document), "out.png")
    assert code == 1
    assert f"{name}.json: expected JSON of bench, bench serve or tools/cpu_kernels" in output
