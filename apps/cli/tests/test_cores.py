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
    for allowed, count in (({0, 2}, 1), ({2, 3}, 2), ({0, 1, 2, 3, 4}, 3), ({4, 5}, 2)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cpus=allowed: cpus)
        assert usable_cores() == count
