"""The number of cores."""

import os
import sys

import psutil
import pytest
from tinyllm_cli.cores import usable_cores


@pytest.mark.skipif(sys.platform != "linux", reason="affinity masks are Linux's own")
def test_hardware_threads_of_a_core_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 16 if logical else 8)
    assert usable_cores() == 8
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert usable_cores() == 3
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: None)  # the system does not say
    assert usable_cores() == 3
