"""Fixtures of the tests of tools."""

import io
import sys
from collections.abc import Callable

import pytest
import typer
from tinyllm_bench import ceilings
from tinyllm_cli.program import run_program

RunTool = Callable[[typer.Typer, str, str], tuple[int, str, str]]


@pytest.fixture
def small_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure ceilings with a buffer and matrices that fit into a cache."""
    monkeypatch.setattr(ceilings, "_READ_BYTES", 1 << 16)
    monkeypatch.setattr(ceilings, "_SIDE", 64)


@pytest.fixture
def run_tool(monkeypatch: pytest.MonkeyPatch) -> RunTool:
    """Return a function that runs a tool and returns its exit code, stdout and stderr.

    Its arguments are the application, the name of the tool and the options.
    """

    def call(app: typer.Typer, name: str, options: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr(sys, "argv", [name, *options.split()])
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        return run_program(app, name), out.getvalue(), err.getvalue()

    return call
