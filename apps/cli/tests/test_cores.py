"""The number of cores."""

import os
import sys
from pathlib import Path

import pytest
from tinyllm_cli import cores
from tinyllm_cli.cores import usable_cores


@pytest.mark.skipif(sys.platform != "linux", reason="affinity masks are Linux's own")
def test_hardware_threads_of_a_core_count_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3", "4"]):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{siblings}\n")
    monkeypatch.setattr(cores, "_PROCESSORS", tmp_path)
    monkeypatch.setattr(cores, "_QUOTA", tmp_path / "absent")
    for allowed, count in (({0, 2}, 1), ({2, 3}, 2), ({0, 1, 2, 3, 4}, 3), ({4, 5}, 2)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cpus=allowed: cpus)
        assert usable_cores() == count


@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's own")
@pytest.mark.parametrize(
    ("quota", "count"),
    [("max 100000\n", 8), ("150000 100000\n", 2), ("50000 100000\n", 1), ("900000 100000\n", 8)],
)
def test_the_quota_of_a_container_is_a_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, count: int
) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(cores, "_PROCESSORS", tmp_path)
    monkeypatch.setattr(cores, "_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert usable_cores() == count
