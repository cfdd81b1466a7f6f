"""Hostile grammars of a seeded generator neither end the process nor take much time or memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

GENERATOR = Path(__file__).with_name("hostile_grammars.py")


@pytest.mark.parametrize("seed", [3, pytest.param(8, marks=pytest.mark.exhaustive)])
def test_hostile_grammars_take_bounded_time_and_memory(seed: int) -> None:
    """The process is another one, because a stack overflow in the compiler would end it."""
    command = [sys.executable, str(GENERATOR), "--count", "60", "--seed", str(seed)]
    process = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    summary = json.loads(process.stdout.splitlines()[-1])
    assert summary["compiled"] >= 20
    assert summary["slowest_seconds"] < 5
    assert summary["slowest_mask_seconds"] < 0.5
    assert summary["megabytes"] < 500
