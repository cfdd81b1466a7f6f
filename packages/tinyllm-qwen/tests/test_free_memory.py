"""Free memory is limited by the machine, and by the control groups of the process."""

import os
from pathlib import Path

import mlx.core as mx
import psutil
import pytest
from tinyllm_qwen.free_memory import free_memory


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A system without control groups."""
    (tmp_path / "proc/self").mkdir(parents=True)
    return tmp_path


def groups(root: Path, text: str) -> None:
    (root / "proc/self/cgroup").write_text(text)


def v2(root: Path, folder: str, limit: str, used: int, cache: int) -> None:
    stat = f"anon 5\ninactive_file {cache - cache // 4}\nactive_file {cache // 4}\nfile 9\n"
    files = {"memory__max": f"{limit}\n", "memory__current": f"{used}\n", "memory__stat": stat}
    write(root / "sys/fs/cgroup" / folder, **files)


def test_without_a_limit_the_free_memory_is_that_of_the_machine(root: Path) -> None:
    machine = psutil.virtual_memory().total
    assert 0 < free_memory(root) <= machine
    groups(root, "0::/user.slice\n")
    v2(root, "user.slice", "max", 800, 0)
    assert 10_000 < free_memory(root) <= machine


def test_a_service_has_the_least_of_all_groups_above_it(root: Path) -> None:
    groups(root, "1:name=systemd:/x\n0::/system.slice/serve.service\n")
    v2(root, "system.slice/serve.service", "1000", 800, 100)
    assert free_memory(root) == 300
    v2(root, "system.slice", "2000", 1950, 50)
    assert free_memory(root) == 100
    v2(root, "system.slice", "2000", 2001, 0)
    assert free_memory(root) == 0


def test_a_container_may_not_see_the_path_of_its_group(root: Path) -> None:
    groups(root, "0::/docker/0123\n")
    v2(root, "", "4000", 1000, 10)
    assert free_memory(root) == 3010


def test_a_group_can_have_any_name(root: Path) -> None:
    (root / "proc/self/cgroup").write_bytes(b"0::/a:\xff\x0b\n\nodd\n")
    v2(root, os.fsdecode(b"a:\xff\x0b"), "4000", 1000, 10)
    assert free_memory(root) == 3010


def test_version_1_has_files_of_other_names(root: Path) -> None:
    groups(root, "5:cpu,cpuacct:/a\n4:memory:/a\n")
    files = {"memory__limit_in_bytes": "9000\n", "memory__usage_in_bytes": "2000\n"}
    write(
        root / "sys/fs/cgroup/memory/a",
        **files,
        memory__stat="total_inactive_file 400\ntotal_active_file 100\n",
    )
    assert free_memory(root) == 7500


@pytest.mark.parametrize(
    ("info", "free"),
    [
        ({"free_memory": 1000, "total_memory": 5000}, 1070),
        ({"max_recommended_working_set_size": 900, "memory_size": 5000}, 600),
        ({"max_recommended_working_set_size": 200, "memory_size": 5000}, 0),
    ],
    ids=["NVIDIA", "Mac", "Mac, full"],
)
def test_a_gpu_has_a_memory_or_a_limit_of_its_own(
    info: dict[str, int], free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLX reuses the memory of its cache, which NVIDIA's free memory does not contain."""
    with monkeypatch.context() as patch:
        patch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu, 0))
        patch.setattr(mx, "device_info", lambda: info)
        patch.setattr(mx, "get_active_memory", lambda: 300)
        patch.setattr(mx, "get_cache_memory", lambda: 70)
        assert free_memory() == free
