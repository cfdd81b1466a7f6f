"""Links, files and members in the documentation exist, and `chat` explains RMSNorm."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/*/README.md")],
    key=lambda page: page.relative_to(ROOT),
)
MEMBERS = sorted([*ROOT.glob("packages/*"), *ROOT.glob("apps/*")])
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


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90


def test_the_folders_in_contributing_are_the_tree() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.split("## Folders")[1].split("\n\n")[1]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    folders = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    assert all((ROOT / folder).is_dir() for folder in folders)
    assert {str(member.relative_to(ROOT)) for member in MEMBERS} <= folders


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_contributing_has_the_command_that_tests_a_member_alone(member: Path) -> None:
    name = tomllib.loads((member / "pyproject.toml").read_text())["project"]["name"]
    command = f"--package {name} pytest {member.relative_to(ROOT)}\n"
    assert f"    uv run --isolated --exact {command}" in (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.parametrize("ops", ["reference", "mlx"])
def test_chat_explains_rmsnorm(ops: str) -> None:
    chat = Path(sys.executable).parent / "chat"
    command = [str(chat), "--prompt", "what does rmsnorm do?"]
    done = subprocess.run(
        [*command, "--ops", ops], capture_output=True, text=True, timeout=120, check=True
    )
    assert "root mean square" in done.stdout
