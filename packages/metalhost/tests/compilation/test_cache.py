"""Cache of builds: each file is built once, and old files are evicted."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from metalhost import metal_kernel
from metalhost.compilation import cache
from metalhost.compilation.cache import MAX_DAYS, get_or_build
from metalhost.settings import Mode

CALL = """
import numpy as np, metalhost
kernel = metalhost.metal_kernel("one", [], ["y"], "y[thread_position_in_grid.x] = 7;")
sizes = dict(grid=(1, 1, 1), threadgroup=(1, 1, 1))
print(kernel(inputs=[], output_shapes=[(1,)], output_dtypes=[np.float32], **sizes)[0][0])
"""


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("METALHOST_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def cache_without_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: None) -> Path:
    """A cache without programs, but with the runtime and the headers that are already built."""
    shared = cache.folder()
    for path in (*shared.glob("*.o"), *shared.glob("*.gch")):
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.setenv("METALHOST_CACHE", str(tmp_path))
    return tmp_path


def written(scratch: Path) -> Path:
    (scratch / "file").write_text("text")
    return scratch / "file"


def test_folder_of_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("METALHOST_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "metalhost"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.folder() == tmp_path / ".cache" / "metalhost"


def test_a_file_is_built_once(empty: Path) -> None:
    made = []

    def make(scratch: Path) -> Path:
        made.append(scratch)
        return written(scratch)

    assert get_or_build("name", make).read_text() == "text"
    assert get_or_build("name", make) == empty / "name"
    assert len(made) == 1
    assert list(empty.iterdir()) == [empty / "name"]


def test_a_failed_build_leaves_no_files(empty: Path) -> None:
    def fail(scratch: Path) -> Path:
        (scratch / "half").write_text("half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        get_or_build("name", fail)
    assert list(empty.iterdir()) == []


def test_files_that_were_not_used_for_a_month_are_evicted(empty: Path) -> None:
    past = time.time() - (MAX_DAYS + 1) * 86400
    (empty / "making-dead").mkdir()
    for name in ("old", "used", "making-dead/program"):
        (empty / name).write_text("")
        os.utime(empty / name, (past, past))
    os.utime(empty / "making-dead", (past, past))
    get_or_build("used", written)
    get_or_build("new", written)
    assert {path.name for path in empty.iterdir()} == {"used", "new"}


def test_the_least_recently_used_files_are_evicted_from_a_full_cache(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MAX_BYTES", 200)
    for hours, name in enumerate(("at work", "yesterday", "before", "long before")):
        (empty / name).write_text("x" * 150)
        past = time.time() - 10 * hours * 3600
        os.utime(empty / name, (past, past))
    get_or_build("new", written)
    assert {path.name for path in empty.iterdir()} == {"at work", "new"}
    (empty / "at work").rename(empty / "unknown")
    get_or_build("another", written)
    assert len(list(empty.iterdir())) == 3  # a process evicts files once


def test_keys_depend_on_the_boundaries_between_parts() -> None:
    keys = {cache.key(*parts) for parts in (("ab", "c"), ("a", "bc"), ("abc",), ("ab", "d"))}
    assert len(keys) == 4


def test_several_processes_can_build_the_same_file(empty: Path, host: None) -> None:
    started = [
        subprocess.Popen([sys.executable, "-c", CALL], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [process.communicate(timeout=120)[0] for process in started] == ["7.0\n"] * 3
    assert not list(empty.glob("making-*"))


def test_a_kernel_is_built_once_for_each_mode_and_dtype(cache_without_programs: Path) -> None:
    kernel = metal_kernel("copy", ["x"], ["y"], "y[thread_position_in_grid.x] = x;")
    counts = []
    calls: list[tuple[str, Mode]] = [
        ("f4", "fast"),
        ("f4", "fast"),
        ("f4", "check"),
        ("i4", "check"),
    ]
    for dtype, mode in calls:
        kernel(
            inputs=[np.ones((), dtype)],
            output_shapes=[(1,)],
            output_dtypes=[np.float32],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
            mode=mode,
        )
        counts.append(len([path for path in cache_without_programs.iterdir() if not path.suffix]))
    assert counts == [1, 1, 2, 3]
