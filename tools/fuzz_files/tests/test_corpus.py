"""The readers of untrusted files, on the corpus: valid files, and files that broke a reader."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz_files import __main__ as command
from fuzz_files.__main__ import NAMES, app
from fuzz_files.mutate import mutation
from fuzz_files.targets import TARGETS, corpus
from tinyllm_qwen.text.chat_template import ChatTemplate

FILES = [(name, file) for name in TARGETS for file in corpus(name)]
HANGING = f"""
import sys, time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from fuzz_files import targets, worker

name, seconds, seed, folder = sys.argv[1:]
targets.TARGETS[name] = replace(targets.TARGETS[name], read=lambda folder: time.sleep(600))
worker.HANG = 0.5
worker.main(name, float(seconds), int(seed), Path(folder))
"""


@pytest.mark.parametrize(("name", "file"), FILES)
def test_each_file_is_read_or_refused(tmp_path: Path, name: str, file: str) -> None:
    started = time.process_time()
    TARGETS[name].check(tmp_path, corpus(name)[file])
    assert time.process_time() - started < 2


@pytest.mark.parametrize("name", NAMES)
def test_valid_files_are_accepted(tmp_path: Path, name: str) -> None:
    """A file that is refused would leave most of a reader unreached."""
    reader = TARGETS[name]
    valid = {file: data for file, data in corpus(name).items() if file.startswith("valid")}
    assert valid
    for data in valid.values():
        reader.check(tmp_path, data)
        reader.read(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_damaged_files_are_read_or_refused(tmp_path: Path, name: str) -> None:
    draw = random.Random(name)
    files = list(corpus(name).values())
    for _ in range(100):
        TARGETS[name].check(tmp_path, mutation(draw.choice(files), draw, name))


def test_every_reader_has_a_corpus() -> None:
    assert sorted(TARGETS) == NAMES


def test_a_reader_with_a_fault_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("default")

    monkeypatch.setattr(ChatTemplate, "render", fail)
    with pytest.raises(KeyError):
        TARGETS["template"].check(tmp_path, corpus("template")["valid-qwen3"])


def test_a_reader_that_never_returns_is_a_finding(
    run_tool: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, kept = tmp_path / "worker.py", tmp_path / "new" / "folder"
    worker.write_text(HANGING)
    monkeypatch.setattr(command, "WORKER", worker)
    code, out, err = run_tool(app, "fuzz_files", f"--target index --keep {kept}")
    assert (code, out) == (1, "index: unknown files, FINDING\n")
    assert err == f"fuzz_files: index: see {kept}/index.log\n"
    assert sorted(path.name for path in kept.iterdir()) == ["index-latest", "index.log"]
    assert "Timeout" in (kept / "index.log").read_text()


def test_the_command_reports_each_reader(
    run_tool: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    options = f"--target index --target config --seconds 0.2 --keep {tmp_path}"
    code, out, err = run_tool(app, "fuzz_files", options)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["index", "config"]
    assert all(line.endswith("files, no finding") for line in lines)
    code, _, err = run_tool(app, "fuzz_files", "--target nothing")
    assert (code, "--target: expected config, " in err) == (2, True)
    code, _, err = run_tool(app, "fuzz_files", f"--keep {__file__}")
    assert (code, "--keep: expected a folder, got the file " in err) == (2, True)
