"""`.ci/run`: every test belongs to one step, and a failed step is told."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def ci() -> ModuleType:
    """Return the program behind `.ci/run`."""
    spec = importlib.util.spec_from_file_location("ci_steps", ROOT / ".ci" / "steps.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["ci_steps"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_each_member_is_tested_alone(ci: ModuleType) -> None:
    for nightly in (False, True):
        commands = [step.commands for step in ci.table(nightly).values()]
        for member in [*ROOT.glob("packages/*"), *ROOT.glob("apps/*")]:
            folder = f" pytest -q {member.relative_to(ROOT)}"
            alone = [text for text in commands if f"{text} ".find(f"{folder} ") > 0]
            assert len(alone) == 1, member
            assert " --exact --locked --package " in alone[0]


def test_the_workspace_has_what_the_tests_of_each_member_import() -> None:
    """`uv run pytest` runs them all in the environment of the workspace."""
    for member in [*ROOT.glob("packages/*"), *ROOT.glob("apps/*")]:
        groups = tomllib.loads((member / "pyproject.toml").read_text())["dependency-groups"]
        for entry in groups["dev"]:
            distribution(re.split(r"[>=\[]", entry)[0])  # raises PackageNotFoundError


def test_the_jobs_of_a_change_have_all_steps_once(ci: ModuleType) -> None:
    (matrix,) = re.findall(r"^        steps:\n((?: +- .*\n)+)", WORKFLOW, re.MULTILINE)
    named = re.findall(r"[\w-]+", re.sub(r"^ +- ", "", matrix, flags=re.MULTILINE))
    assert sorted(named) == sorted(ci.table(nightly=False))


def test_a_failed_step_is_told_and_the_others_are_run(ci: ModuleType, tmp_path: Path) -> None:
    steps = {
        "first": ci.Step("echo one\nfalse | true\necho two"),
        "second": ci.Step("echo three"),
    }
    outcomes = {outcome.name: outcome for outcome in ci.Runner(tmp_path).run(steps, 1)}
    assert outcomes["first"].failed
    assert outcomes["first"].output == "one\n"
    assert not outcomes["second"].failed
    assert outcomes["second"].output == "three\n"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--list"], 0, "tinyllm-kernels"),
        (["--only", "nothing"], 2, "invalid choice: 'nothing'"),
        (["--jobs", "0"], 2, "--jobs: expected at least 1, got 0"),
    ],
)
def test_options(words: list[str], code: int, told: str) -> None:
    command = [sys.executable, str(ROOT / ".ci" / "steps.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert told in done.stdout + done.stderr


def test_steps_can_be_interrupted_when_ci_runs_in_the_background() -> None:
    program = """
import signal, sys, steps
signal.signal(signal.SIGINT, signal.SIG_IGN)
shown = "import signal; print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"
steps.table = lambda nightly: {"one": steps.Step(f"{sys.executable} -c '{shown}'")}
sys.exit(steps.main())
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT / ".ci", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "\nFalse\n" in done.stdout
