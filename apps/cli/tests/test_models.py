"""`tinyllm models` against a Hub and a cache on this machine. No test downloads."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

NAME = "owner/pico"
Files = dict[str, bytes]
Hub = Callable[..., str]
Fill = Callable[[str, Files], Path]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `tinyllm` in a process of its own, with a cache in `tmp_path` and without a network."""

    def run_tinyllm(*words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        hermetic = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "NO_PROXY": "*"}
        return subprocess.run(
            [sys.executable, "-m", "tinyllm_cli", *words],
            env=os.environ | hermetic | environ,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run_tinyllm


def test_a_model_is_pulled_listed_shown_run_and_removed(
    run: Run, serve_hub: Hub, pico_files: Files, tmp_path: Path
) -> None:
    address = serve_hub(NAME, pico_files | {"model.gguf": b"unwanted", "LICENSE": b"Apache"})
    pulled = run("models", "pull", NAME, HF_ENDPOINT=address, HF_HUB_OFFLINE="0")
    assert pulled.returncode == 0, pulled.stderr
    folder = Path(pulled.stdout.strip())
    assert folder.is_relative_to(tmp_path)
    assert (folder / "model.safetensors").is_file()
    assert not (folder / "model.gguf").exists()
    assert (folder / "LICENSE").read_bytes() == b"Apache"  # `convert` copies it
    assert "%" in pulled.stderr  # the bars of huggingface_hub

    listed = run("models").stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["pico", NAME]
    assert "qwen3, 4 bits" in listed[1]

    shown = run("models", "show", NAME).stdout
    assert folder.name in shown  # the commit
    assert str(folder) in shown
    assert f"yes: tinyllm chat --model {NAME}" in shown

    answer = run("chat", "--model", NAME, "--prompt", "what does rmsnorm do?")
    assert "root mean square" in answer.stdout, answer.stderr

    removed = run("models", "remove", NAME, "--yes")
    assert removed.returncode == 0, removed.stderr
    assert removed.stdout.startswith(f"removed {NAME}, ")
    assert not list(tmp_path.glob("hub/models--*/**/*.safetensors"))
    assert [line.split()[0] for line in run("models").stdout.splitlines()] == ["pico"]


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_download_at_once(
    serve_hub: Hub, pico_files: Files, tmp_path: Path, signal_number: signal.Signals
) -> None:
    address = serve_hub(NAME, pico_files, seconds=60.0)
    environ = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": address, "NO_PROXY": "*"}
    command = [sys.executable, "-m", "tinyllm_cli", "models", "pull", NAME]
    with subprocess.Popen(command, env=os.environ | environ, stderr=subprocess.DEVNULL) as process:
        pattern = "hub/models--*/blobs/*.incomplete"
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(pattern)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal_number)
        start = time.monotonic()
        assert process.wait(timeout=30) in (128 + signal_number, -signal_number)
    assert time.monotonic() - start < 15
    while list(tmp_path.glob(pattern)):  # the process of the download removes them, and ends
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_download_needs_no_stderr(serve_hub: Hub, pico_files: Files, tmp_path: Path) -> None:
    environ = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": serve_hub(NAME, pico_files)}
    command = f"exec {sys.executable} -m tinyllm_cli models pull {NAME} 2>&-"
    done = subprocess.run(
        ["sh", "-c", command],
        env=os.environ | environ | {"NO_PROXY": "*"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0
    assert (Path(done.stdout.strip()) / "model.safetensors").is_file()


@pytest.mark.parametrize("seed", range(4))  # the client's order depends on hashes
def test_of_two_names_for_one_commit_only_the_named_one_is_removed(
    run: Run, fill_cache: Fill, pico_files: Files, seed: int
) -> None:
    kept, removed = fill_cache("old/pico", pico_files), fill_cache(NAME, pico_files)
    done = run("models", "remove", NAME, "--yes", PYTHONHASHSEED=str(seed))
    assert done.returncode == 0, done.stderr
    assert not removed.exists()
    assert (kept / "config.json").is_file()


def test_a_list_costs_no_import_of_the_client_that_downloads() -> None:
    code = (
        "import sys; sys.argv = ['tinyllm', 'models', 'list']; from tinyllm_cli.cli import main; "
        "main(); sys.exit('huggingface_hub.hf_api' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_model_that_tinyllm_cannot_run_is_marked(run: Run, fill_cache: Fill) -> None:
    fill_cache("owner/other", {"config.json": b'{"model_type": "gpt2"}'})
    assert "cannot run it" in run("models", "list").stdout
    shown = run("models", "show", "owner/other").stdout
    assert "no: " in shown
    assert "gpt2" in shown


def test_a_pulled_model_that_tinyllm_cannot_run_is_an_error(run: Run, serve_hub: Hub) -> None:
    files = {"config.json": b'{"model_type": "gpt2"}', "model.safetensors": b"x"}
    address = serve_hub(NAME, files)
    pulled = run("models", "pull", NAME, HF_ENDPOINT=address, HF_HUB_OFFLINE="0")
    assert pulled.returncode == 1
    assert f"`tinyllm models remove {NAME}`" in pulled.stderr


def test_an_unfinished_model_is_not_said_to_run(
    run: Run, fill_cache: Fill, pico_files: Files
) -> None:
    del pico_files["model.safetensors"]
    fill_cache(NAME, pico_files)
    assert "no: " in run("models", "show", NAME).stdout


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("pull pico", 1, "pico is built in: run `tinyllm chat`"),
        ("pull owner/pico", 1, "HF_HUB_OFFLINE"),
        ("pull a/b/c", 1, "check the name"),
        ("pull", 2, "(see tinyllm models --help)"),
        ("pul", 2, "(see tinyllm models --help)"),
        ("show pica", 1, "did you mean pico?"),
        ("show owner/absent", 1, "`tinyllm models list`"),
        ("remove pico", 1, "part of the installation"),
        ("remove owner/absent --yes", 1, "not on this machine"),
    ],
)
def test_an_error_is_one_line_with_a_remedy(run: Run, words: str, code: int, message: str) -> None:
    done = run("models", *words.split())
    assert done.returncode == code
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("tinyllm: models: ")
    assert message in line


def test_a_repository_that_the_hub_lacks_is_an_error(run: Run, serve_hub: Hub) -> None:
    address = serve_hub(NAME, {})
    done = run("models", "pull", "owner/absent", HF_ENDPOINT=address, HF_HUB_OFFLINE="0")
    assert done.returncode == 1
    assert "check the name" in done.stderr.splitlines()[-1]


def test_without_a_terminal_nothing_is_removed_unasked(
    run: Run, fill_cache: Fill, pico_files: Files
) -> None:
    snapshot = fill_cache(NAME, pico_files)
    done = run("models", "remove", NAME)
    assert done.returncode == 1
    assert "expected --yes" in done.stderr
    assert (snapshot / "config.json").is_file()


@pytest.mark.parametrize(("answer", "removed"), [("y\n", True), ("\n", False)])
def test_remove_asks_on_a_terminal(
    fill_cache: Fill, pico_files: Files, tmp_path: Path, answer: str, removed: bool
) -> None:
    snapshot = fill_cache(NAME, pico_files)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tinyllm_cli", "models", "remove", NAME]
    process = subprocess.Popen(
        command,
        env=os.environ | {"HF_HOME": str(tmp_path)},
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    os.write(ours, answer.encode())
    _, messages = process.communicate(timeout=120)
    os.close(ours)
    assert f"Remove {NAME}, 3.1 MB? [y/N]" in messages
    assert process.returncode == (0 if removed else 1)
    assert snapshot.exists() != removed
