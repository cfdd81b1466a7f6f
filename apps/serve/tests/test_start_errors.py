"""Wrong options, and models that cannot be served: the program names them and ends."""

import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from tinyllm_serve import cli, json_log
from tinyllm_serve.options import REMEDIES

exhaustive = pytest.mark.exhaustive


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--prot", "1"], "No such option: --prot"),
        # Words of other servers.
        (["Qwen/Qwen3-0.6B"], "expected options alone: use --model Qwen/Qwen3-0.6B (see serve "),
        (["a", "--port", "1"], "a: expected options alone: use --model a (see serve --help)"),
        (["--gpu-memory-utilization", "0.9"], "unknown here: use --kv-cache-memory, in GB"),
        (["--tensor-parallel-size=2"], "--tensor-parallel-size: unknown here: start several"),
        (["--port", "1", "-tp", "2"], "-tp: unknown here: start several processes"),
        (["-c", "4096"], "-c: unknown here: use --max-model-len"),
        (["-ctk", "q8_0"], "-ctk: unknown here: use --kv-bits 8, or 4"),
        (["--kv-cache-dtype", "fp8"], "unknown here: use --kv-bits 8, or 4"),
        (["--lora-modules", "a=b"], "unknown here: fuse the adapter with the checkpoint"),
        (["--chat-template", "a"], "unknown here: write chat_template.jinja"),
        (["--enable-auto-tool-choice"], "unknown here: leave it out, the chat template decides"),
        (["--quantization", "awq"], "unknown here: leave it out, the checkpoint names its format"),
        (["--trust-remote-code"], "unknown here: leave it out, no code of a checkpoint is run"),
        (["-m", "a"], "-m: unknown here: use --model"),
        (["--dtype", "half"], "expected one of auto, float32, float16, bfloat16, got half"),
        (["--port", "70000"], "--port: expected from 0 to 65535, got 70000"),
        (["--kv-bits", "3"], "--kv-bits: expected 4 or 8, got 3"),
        (
            ["--ops", "cuda"],
            "--ops: expected one of auto, cpu, cpu-int8, metal, mlx, reference, got cuda",
        ),
        (["--allowed-origins", "here"], "--allowed-origins: expected * or an origin"),
        (["--allowed-origins", "https://a.example/"], "--allowed-origins: expected * or an origin"),
        (["--allowed-origins", "https://A.example"], "--allowed-origins: expected * or an origin"),
        (["--allowed-host", "["], "--allowed-host: expected a name alone"),
        (["--api-key", "a b"], "--api-key: expected printable characters"),
        (["--allowed-host", "http://a.b"], "--allowed-host: expected a name alone"),
        (["--allowed-host", "a.b:80"], "--allowed-host: expected a name alone"),
        (["--kv-cache-memory", "inf"], "memory: expected from 0.001 to 1000000, got inf"),
        (["--memory", "inf"], "--kv-cache-memory: expected from 0.001 to 1000000"),
        (["--drain", "nan"], "--timeout-graceful-shutdown: expected from 0 to 3600, got nan"),
    ],
)
def test_an_invalid_option_is_named(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    expected: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["serve", *options])
    assert cli.main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("serve: ")
    assert expected in line


def test_remedies_name_options_of_serve_for_words_that_it_lacks() -> None:
    command = typer.main.get_command(cli.app)
    own = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    assert not own & REMEDIES.keys()
    named = {name for remedy in REMEDIES.values() for name in re.findall(r"--[a-z-]+", remedy)}
    assert named <= own


@pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_change_the_exit_code(closed: str) -> None:
    command = f"exec {sys.executable} -m tinyllm_serve --port 70000 {closed}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    expected = "" if "2>&-" in closed else "serve: --port: expected from 0 to 65535, got 70000"
    assert done.stderr.startswith(expected)
    assert "Traceback" not in done.stderr


def test_a_connection_that_another_process_has_closed_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_settings: object) -> None:
        raise BrokenPipeError("rank 1 has left")

    monkeypatch.setattr(sys, "argv", ["serve"])
    monkeypatch.setattr(cli, "run", run)
    assert cli.main() == 1
    assert capsys.readouterr().err == "serve: rank 1 has left\n"


@pytest.fixture
def fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Run the program, which fails to start, and return its message."""
    monkeypatch.setattr(json_log, "configure_log", lambda: None)

    def run(*options: str) -> str:
        monkeypatch.setattr(sys, "argv", ["serve", *options])
        assert cli.main() == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("serve: ")
        return line

    return run


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--model", "no/where/at-all", "--port", "0"], "neither a folder here nor"),
        (["--host", "a..b", "--allow-anonymous"], "cannot listen on a..b:8000: choose another"),
        (
            ["--host", "256.0.0.1", "--port", "0", "--allow-anonymous"],
            "cannot listen on 256.0.0.1:0",
        ),
    ],
)
def test_a_failed_start_prints_the_reason(
    fails: Callable[..., str], options: list[str], expected: str
) -> None:
    assert expected in fails(*options)


def test_a_damaged_model_is_named(fails: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert str(tmp_path / "config.json") in fails("--model", str(tmp_path), "--port", "0")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--model ./misspelled", "'./misspelled' is neither a folder here nor"),
        pytest.param("--model config.json", "config.json is a file", marks=exhaustive),
        ("--model .", "config.json: "),
        pytest.param("--revision main", "only repositories on the Hub have rev", marks=exhaustive),
        ("--draft-model ./misspelled", "'./misspelled' is neither a folder here nor"),
    ],
)
def test_a_model_that_is_missing_is_reported_before_the_server_listens(
    tmp_path: Path, options: str, expected: str
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    done = subprocess.run(
        [sys.executable, "-m", "tinyllm_serve", "--port", "0", *options.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("serve: ")
    assert expected in line


def test_a_model_without_a_draft_head_is_refused(fails: Callable[..., str]) -> None:
    line = fails("--port", "0", "--draft-model", "mtp")
    assert "expected a draft head (mtp.*)" in line


def test_a_draft_model_with_other_tokens_is_refused(
    fails: Callable[..., str], endless: Path
) -> None:
    line = fails("--port", "0", "--draft-model", str(endless))
    assert "--draft-model: expected the " in line
    assert "of the same family" in line


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "tinyllm_cli", "serve", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("serve: ")
    assert "(Address already in use)" in line
    assert "choose another --host or --port" in line
