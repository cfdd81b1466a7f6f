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
    monkeypatch.setattr(cores, "_GROUPS", tmp_path / "absent")
    for allowed, count in (({0, 2}, 1), ({2, 3}, 2), ({0, 1, 2, 3, 4}, 3), ({4, 5}, 2)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cpus=allowed: cpus)
        assert usable_cores() == count


@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's own")
@pytest.mark.parametrize(
    ("quota", "count"),
    [("max 100000\n", 8), ("150000 100000\n", 2), ("50000 100000\n", 1), ("900000 100000\n", 8)],
)
@pytest.mark.parametrize("group", [".", "system.slice", "system.slice/x.service"])
@pytest.mark.parametrize("membership", ["3:cpu:/other\n0::/system.slice/x.service\n", "0::/\n", ""])
def test_the_quota_of_a_group_is_a_limit(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    membership: str,
    group: str,
    quota: str,
    count: int,
) -> None:
    (tmp_path / "membership").write_text(membership)
    (tmp_path / "groups" / "system.slice" / "x.service").mkdir(parents=True)
    (tmp_path / "groups" / group / "cpu.max").write_text(quota)
    is_member = group == "." or "x.service" in membership
    monkeypatch.setattr(cores, "_PROCESSORS", tmp_path)
    monkeypatch.setattr(cores, "_MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(cores, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert usable_cores() == (count if is_member else 8)
