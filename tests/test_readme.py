"""Links, files and packages in the documentation exist, and `chat` explains RMSNorm."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/*/README.md")],
    key=lambda page: page.relative_to(ROOT),
)
TRACKED = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
).stdout.splitlines()
LINK = re.compile(r"\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)")
CODE = re.compile(r"^(```+).*?^\1$", re.MULTILINE | re.DOTALL)  # in code, "](" may be an operator
FILE = re.compile(r"`([\w/.-]+\.py|[\w.-]+/[\w/.-]+\.(?:md|toml|jinja))`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(CODE.sub("", page.read_text())):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_named_file_exists(page: Path) -> None:
    for name in FILE.findall(page.read_text()):
        assert any(f"/{path}".endswith(f"/{name}") for path in TRACKED), name


@pytest.mark.parametrize("picture", sorted(ROOT.glob("docs/img/*.svg")), ids=lambda path: path.name)
def test_every_file_in_a_picture_is_there(picture: Path) -> None:
    for name in re.findall(r"[\w/]+\.py", picture.read_text(encoding="utf-8")):
        assert any(f"/{path}".endswith(f"/{name}") for path in TRACKED), name


def test_the_tree_in_the_readme_is_the_tree() -> None:
    readme = (ROOT / "README.md").read_text()
    block = readme.split("## What is here")[1].split("\n\nEach package")[0]
    folder = ""
    for line in filter(str.strip, block.splitlines()):
        name = line.strip().split()[0]
        folder = name if line.startswith("    ") and line[4] != " " else folder
        path = ROOT / name if name == folder else ROOT / folder / name
        assert path.is_dir(), path


def test_no_package_is_missing_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for project in [*ROOT.glob("packages/*"), *ROOT.glob("apps/*")]:
        assert f"pytest {project.relative_to(ROOT)}`" in readme, project


@pytest.mark.parametrize("ops", ["reference", "mlx"])
def test_chat_explains_rmsnorm(ops: str) -> None:
    chat = Path(sys.executable).parent / "chat"
    command = [str(chat), "--prompt", "what does rmsnorm do?"]
    done = subprocess.run(
        [*command, "--ops", ops], capture_output=True, text=True, timeout=120, check=True
    )
    assert "root mean square" in done.stdout
