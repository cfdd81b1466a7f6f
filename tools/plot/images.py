"""Checks of an image before a long measurement."""

import importlib.util
from pathlib import Path

from tinyllm_bench.errors import BenchError
from tinyllm_cli.messages import UsageError

SUFFIXES = (".png", ".svg", ".pdf")


def check_image(path: Path | None) -> None:
    """Check that an image can be written.

    Raises:
        BenchError: if matplotlib or the folder is missing.
        UsageError: if there is no format with its suffix.
    """
    if path is None:
        return
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot: expected one of {', '.join(SUFFIXES)}, got {path.suffix}")
    if importlib.util.find_spec("matplotlib") is None:
        raise BenchError("--plot needs matplotlib, which is not installed: pip install matplotlib")
    if not path.parent.is_dir():
        raise BenchError(f"--plot: there is no folder {path.parent}: make it first")
