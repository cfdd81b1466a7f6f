"""Ctrl-C ends a run of pytest, also while Python collects garbage."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = """
import gc

def interrupt(phase, info):
    raise KeyboardInterrupt

def test_first():
    gc.callbacks.append(interrupt)
    gc.collect()
    gc.callbacks.remove(interrupt)

def test_second():
    pass
"""


def test_an_interrupt_in_a_callback_of_the_garbage_collector_ends_the_run(tmp_path: Path) -> None:
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (tmp_path / "test_two.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q"]
    environ = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # their import takes 3 s
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stdout
    assert "Ctrl-C" in done.stdout
    assert "1 passed" in done.stdout
