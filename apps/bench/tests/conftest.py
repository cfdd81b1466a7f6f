"""Small ceilings and a small model, so that no test measures for long."""

import io
import sys
from collections.abc import Callable

import pytest
from tinyllm_bench import ceilings, cli
from tinyllm_bench.models.model import BenchModel
from tinyllm_bench.settings import Settings


@pytest.fixture(autouse=True)
def small_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure ceilings with a buffer and matrices that fit into a cache."""
    monkeypatch.setattr(ceilings, "_READ_BYTES", 1 << 16)
    monkeypatch.setattr(ceilings, "_SIDE", 64)


@pytest.fixture(scope="session")
def pico() -> BenchModel:
    return BenchModel.make(Settings(prompt_tokens=4, decode_tokens=2, batch=2))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[int, str, str]]:
    """Return a function that runs `bench` and returns its exit code, stdout and stderr."""

    def run(options: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr(cli, "exit_on_signals", lambda: None)
        monkeypatch.setattr(sys, "argv", ["bench", *options.split()])
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        code = cli.main()
        return code, out.getvalue(), err.getvalue()

    return run
