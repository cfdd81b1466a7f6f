"""Small machines and small models, so that the tests measure nothing that takes long."""

import io
import sys
from collections.abc import Callable

import pytest
from tinyllm_bench import ceilings, cli
from tinyllm_bench.settings import Settings
from tinyllm_bench.subject import Subject


@pytest.fixture(autouse=True)
def small_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings of a buffer and of matrices that fit into a cache."""
    monkeypatch.setattr(ceilings, "_READ_BYTES", 1 << 16)
    monkeypatch.setattr(ceilings, "_SIDE", 64)


@pytest.fixture(scope="session")
def pico() -> Subject:
    return Subject.make(Settings(prompt_tokens=4, decode_tokens=2, batch=2))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[int, str, str]]:
    """Run the program with these options: its exit code, its stdout and its stderr."""

    def run(options: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr(sys, "argv", ["bench", *options.split()])
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        code = cli.main()
        return code, out.getvalue(), err.getvalue()

    return run
