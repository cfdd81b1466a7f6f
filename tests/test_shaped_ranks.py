"""Ranks in network namespaces: a slow network takes at least the predicted time, and is removed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, str(ROOT / "tools" / "shaped_ranks" / "run.py"), "--tokens", "4"]
HOPS = 28  # per token of pico on two ranks: 13 all-reduces of two, the best tokens, the command

# Only root on Linux can make namespaces and their devices.
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or not os.access("/dev/net/tun", os.W_OK),
    reason="needs Linux, root and /dev/net/tun",
)


def namespaces_of(process: int) -> list[str]:
    """List the namespaces of a run, which names them after itself."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if line.startswith(f"ranks{process}-")]


def children_of(process: int) -> list[str]:
    """List the children of a process."""
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True, check=False
    )
    return listed.stdout.split()


def test_a_slow_network_is_predicted_and_taken_down() -> None:
    with subprocess.Popen(
        [*COMMAND, "--case", "2:1000:3000"], stdout=subprocess.PIPE, text=True
    ) as run:
        out, _ = run.communicate(timeout=100)
    assert run.returncode == 0
    assert namespaces_of(run.pid) == []
    unshaped, slow = (line.split() for line in out.splitlines()[2:])
    for row in (unshaped, slow):
        sent, predicted = float(row[3]), float(row[4])
        assert 0.8 * predicted < sent < 1.05 * predicted  # fewer if acknowledgements are merged
    measured, predicted = float(slow[6]), float(slow[7])
    assert measured > HOPS * 3.0
    # Times are printed to 0.1 ms. The 10 KB at 1000 MB/s add only 0.01 ms.
    assert predicted - float(unshaped[6]) == pytest.approx(HOPS * 3.0, abs=0.2)


def test_an_interrupted_run_cleans_up() -> None:
    with subprocess.Popen(
        [*COMMAND, "--case", "2:1000:1000000"], stdout=subprocess.PIPE, text=True
    ) as run:
        limit = time.monotonic() + 30
        ranks: list[str] = []
        while len(ranks) < 2 and time.monotonic() < limit:
            time.sleep(0.1)
            # The processes that set up the namespaces have ended by then.
            ranks = children_of(run.pid) if len(namespaces_of(run.pid)) == 2 else []
        time.sleep(1)  # until the ranks decode
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=30)
    assert run.returncode == 130
    assert namespaces_of(run.pid) == []
    assert len(ranks) == 2
    assert not any(Path("/proc", rank).exists() for rank in ranks)
