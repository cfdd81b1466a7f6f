"""The target folder appears complete or not at all, even if the writer fails or is killed."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tinyllm_qwen.checkpoint.partial_folder import PREFIX, check_target, partial_folder
from tinyllm_qwen.errors import ConversionError


def test_the_name_appears_with_the_last_byte(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    with partial_folder(target) as partial:
        (partial / "file").write_text("text")
        assert partial.parent == target.parent
        assert partial.name.startswith(PREFIX)
        assert not target.exists()
    assert (target / "file").read_text() == "text"
    assert list(target.parent.iterdir()) == [target]


def test_an_empty_folder_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with partial_folder(check_target(target)) as partial:
        (partial / "file").touch()
    assert [path.name for path in target.iterdir()] == ["file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def fail() -> None:
        with partial_folder(tmp_path / "new" / "deep" / "target") as partial:
            (partial / "file").touch()
            raise error

    with pytest.raises(error):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_another_program_uses_is_left(tmp_path: Path) -> None:
    def fail() -> None:
        with partial_folder(tmp_path / "new" / "deep" / "target"):
            (tmp_path / "new" / "theirs").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "theirs"]


def test_a_target_that_came_into_being_meanwhile_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "target"

    def write() -> None:
        with partial_folder(target) as partial:
            (partial / "file").touch()
            target.mkdir()
            (target / "theirs").touch()

    with pytest.raises(ConversionError, match="was made by another program meanwhile"):
        write()
    assert [path.name for path in tmp_path.rglob("*")] == ["target", "theirs"]


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    # A limit on the file size makes `write` fail as a full disk does, without filling a disk.
    script = f"""
import resource
from pathlib import Path
from tinyllm_qwen.checkpoint.partial_folder import partial_folder
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
with partial_folder(Path({str(tmp_path / "target")!r})) as partial:
    (partial / "file").write_bytes(bytes(2000))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "ConversionError" in done.stderr
    assert "nothing of it is left: free some space" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_killed_writer_leaves_a_recognizable_folder(tmp_path: Path) -> None:
    script = f"""
import time
from pathlib import Path
from tinyllm_qwen.checkpoint.partial_folder import partial_folder
with partial_folder(Path({str(tmp_path / "target")!r})) as partial:
    time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + 30
    while not any(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(PREFIX)


@pytest.mark.parametrize("kind", ["file", "folder", "link", "dangling", "here"])
def test_an_existing_target_is_refused(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    if kind == "file":
        target.touch()
    elif kind == "folder":
        (target / "inside").mkdir(parents=True)
    elif kind == "here":
        target.mkdir()
        monkeypatch.chdir(target)
    else:
        target.symlink_to(tmp_path / "elsewhere")
        if kind == "link":
            (tmp_path / "elsewhere").mkdir()
    expected = "in use: name a new folder" if kind == "here" else "exists already: name a new"
    with pytest.raises(ConversionError, match=expected):
        check_target(Path() if kind == "here" else target)


def test_a_name_that_no_folder_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConversionError, match=r"cannot be a folder \(File name too long\): name another"
    ):
        check_target(tmp_path / ("x" * 300))


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConversionError, match=r"could not be written .*name a folder that can be"),
        partial_folder(tmp_path / "file" / "target"),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
