"""Commands in the documentation have options that the programs know, and paths that exist."""

import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tinyllm_serve.clients import read_keys

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/*/README.md")])
PROGRAMS = ("bench", "chat", "convert", "serve")
FENCED = re.compile(r"^```(?:sh|bash|console)?\n(.*?)^```", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"^ {4}(?! )(.+)$", re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
OWN = re.compile(r"(?:packages|apps|tests|tools|docs|\.ci)/[\w./-]+")


def commands(text: str) -> Iterator[list[str]]:
    """Return the words of each command of `uv run` or bash in code blocks and inline code."""
    blocks = [block.replace("\\\n", " ") for block in FENCED.findall(text)]
    lines = [line for block in blocks for line in block.splitlines()]
    rest = FENCED.sub("", text)
    for line in [*lines, *INDENTED.findall(rest), *INLINE.findall(rest)]:
        found = re.search(r"\b(?:uv run|bash) .*", line)
        if found:
            yield shlex.split(re.split(r" [#&|>]", found[0])[0], posix=False)


@cache
def known_options(program: str, subcommand: str) -> frozenset[str]:
    """Return the options in the help of a program."""
    command = [str(Path(sys.executable).parent / program), *filter(None, [subcommand]), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return frozenset(re.findall(r"(?<![\w-])--?[a-z][\w-]*", done.stdout))


def options(words: list[str]) -> tuple[str, str, list[str]] | None:
    """Return the program of a command, its subcommand and its options; None without a program."""
    at = next((place for place, word in enumerate(words) if word in PROGRAMS), None)
    if at is None or "pytest" in words[:at]:
        return None
    following = words[at + 1 :]
    named = following[0] if following and re.fullmatch(r"[a-z]+", following[0]) else ""
    subcommand = named if words[at] == "bench" else ""
    return words[at], subcommand, [word.split("=")[0] for word in following if word[:1] == "-"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_have_known_options(page: Path) -> None:
    for words in commands(page.read_text(encoding="utf-8")):
        found = options(words)
        if found:
            program, subcommand, used = found
            assert set(used) <= known_options(program, subcommand), " ".join(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_have_paths_that_exist(page: Path) -> None:
    for words in commands(page.read_text(encoding="utf-8")):
        for word in words:
            if OWN.fullmatch(word):
                assert (ROOT / word).exists(), " ".join(words)


@pytest.mark.parametrize("page", ["docs/security.md", "docs/serve.md", "apps/serve/README.md"])
def test_options_of_serve_that_a_page_names_exist(page: str) -> None:
    words = [word.split() for word in INLINE.findall((ROOT / page).read_text(encoding="utf-8"))]
    named = {first for first, *_ in words if first.startswith("--")}
    assert named
    assert named <= known_options("serve", "")


def test_options_that_take_the_place_of_others_exist() -> None:
    page = (ROOT / "docs/switching.md").read_text(encoding="utf-8")
    ours = " ".join(re.findall(r"([^|]*)\|$", page, re.MULTILINE))
    unit = page[page.index("ExecStart=") :].partition("EnvironmentFile")[0]
    named = set(re.findall(r"--[a-z][\w-]*", ours + unit))
    assert len(named) > 10
    assert named <= known_options("serve", "")


def test_the_server_reads_the_key_file_of_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs/serve.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^ *\[\[keys\]\]\n(?: +\w.*\n)+", page, re.MULTILINE)
    file = tmp_path / "keys.toml"
    for block in blocks:
        file.write_text(textwrap.dedent(block), encoding="utf-8")
        file.chmod(0o600)
        assert read_keys(file)
    assert blocks


def test_commands_are_found_in_every_kind_of_code() -> None:
    fenced = "```sh\nX=1 uv run bench \\\n --c &\n```"
    text = f"    uv run chat --a 1  # b\n\n`uv run serve --b`\n\n{fenced}\n"
    assert [options(words) for words in commands(text)] == [
        ("bench", "", ["--c"]),
        ("chat", "", ["--a"]),
        ("serve", "", ["--b"]),
    ]
