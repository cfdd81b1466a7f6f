"""`tinyllm` finds commands, and explains what it does not find."""

import os
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from tinyllm_cli import cli
from tinyllm_cli.messages import FAILURE, INTERRUPTED, USAGE, one_line


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tinyllm", *words])
    return cli.main()


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]], ids=" ".join)
def test_help_lists_all_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert run(monkeypatch, *words) == 0
    out = capsys.readouterr().out
    for name, text in cli.COMMANDS.items():
        assert f"  {name:<9}{text}\n" in out


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_a_closed_pipe_and_a_full_disk_are_no_tracebacks(word: str) -> None:
    command = [sys.executable, "-m", "tinyllm_cli", word]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(
            command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")
    device = Path("/dev/full")
    if not device.exists():
        return  # not on a Mac
    with device.open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == FAILURE
    assert done.stderr.startswith("tinyllm: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_help_of_a_command_into_a_closed_pipe_ends_quietly(name: str) -> None:
    command = [sys.executable, "-m", "tinyllm_cli", name, "--help"]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(
            command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")


ECHO = """
import sys, typer
from tinyllm_cli.program import new_app, run_program
app = new_app()

@app.command()
def echo(words: list[str]) -> None:
    for word in words:
        sys.stdout.write(word + chr(10))
        sys.stderr.write(word + chr(10))

sys.exit(run_program(app, "echo"))
"""


@pytest.mark.parametrize(
    ("encoding", "out", "err"),
    [
        ("ascii", b"?1 ? ?", rb"\xb11 \u4e2d \udcff"),  # stderr has its own error handler
        ("latin-1", b"\xb11 ? ?", b"\xb11 \\u4e2d \\udcff"),
        ("ascii:surrogateescape", b"?1 ? ?", rb"\xb11 \u4e2d \udcff"),
        ("ascii:backslashreplace", rb"\xb11 \u4e2d \udcff", rb"\xb11 \u4e2d \udcff"),
        ("utf-8", "\xb11 \u4e2d ?".encode(), "\xb11 \u4e2d \\udcff".encode()),
        # The bytes of a file name, as Python writes them without a locale.
        (
            "utf-8:surrogateescape",
            "\xb11 \u4e2d ".encode() + b"\xff",
            "\xb11 \u4e2d \\udcff".encode(),
        ),
    ],
)
def test_a_character_that_the_encoding_lacks_is_no_error(
    encoding: str, out: bytes, err: bytes
) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", ECHO, "\xb11 \u4e2d ".encode() + b"\xff"],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, out + b"\n", err + b"\n")


def test_ctrl_c_while_a_command_is_imported_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "find", interrupted)
    assert run(monkeypatch, "chat") == INTERRUPTED


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("sevre", "did you mean `tinyllm serve`?"),
        ("CHAT", "did you mean `tinyllm chat`?"),
        ("frobnicate", "see tinyllm --help"),
        ("--model", "options belong after a command"),
        ("", "expected chat, serve, models, convert, bench"),
    ],
)
def test_an_unknown_word_is_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], word: str, message: str
) -> None:
    assert run(monkeypatch, word) == USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tinyllm: ")
    assert message in line


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_is_installed_and_knows_its_name(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tinyllm_cli", name, "--help"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.startswith(f"Usage: tinyllm {name} ")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_an_unknown_option_names_the_command(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tinyllm_cli", name, "--no-such-option"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == USAGE
    (line,) = done.stderr.splitlines()
    assert line.endswith(f"(see tinyllm {name} --help)")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without the apps."""

    def none(**_: str) -> Iterable[EntryPoint]:
        return []

    monkeypatch.setattr(cli, "entry_points", none)


@pytest.mark.usefixtures("alone")
def test_a_command_that_is_not_installed_names_its_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "serve") == FAILURE
    assert "pip install tinyllm-serve" in capsys.readouterr().err
    assert run(monkeypatch) == 0
    assert capsys.readouterr().out.count("[not installed]") == len(cli.COMMANDS)


def fail_with(monkeypatch: pytest.MonkeyPatch, error: ImportError) -> None:
    def command(program: str) -> int:
        raise error

    monkeypatch.setattr(cli, "find", lambda name: command)


def test_mlx_without_a_backend_is_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(monkeypatch, ImportError("libmlx.so: cannot open shared object file"))
    assert run(monkeypatch, "chat") == FAILURE
    assert "tinyllm-cli[cpu]" in capsys.readouterr().err


def test_another_import_error_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, ImportError("no module named x"))
    with pytest.raises(ImportError, match="module named x"):
        run(monkeypatch, "chat")


def test_an_error_of_many_lines_becomes_one_line() -> None:
    error = ValueError("shapes differ\n  missing (2):\n    a\n    b\nDownload again.")
    assert one_line(error) == "shapes differ; missing (2): a; b; Download again."
    assert one_line(ValueError()) == "ValueError"
    assert one_line("a:\n  b\n\x1b[2Jc") == "a: b; \N{REPLACEMENT CHARACTER}[2Jc"
