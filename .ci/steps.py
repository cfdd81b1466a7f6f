"""Runs the steps of CI, several at a time, and prints the output of each when it ends.

`.ci/run` starts this program after it has brought uv. A step is a name and shell commands: the
table is in `table`.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINUX = sys.platform == "linux"

LONGEST = (
    "workspace",
    "native",
    "tinyllm-serve",
    "tinyllm-kernels",
    "tinyllm-qwen",
    "attack",
    "wheels",
    "tinyllm-engine",
    "tinyllm-layers",
    "depend",
)
"""The longest steps, which begin first, so that no core waits for one of them at the end."""


@dataclass(frozen=True)
class Step:
    """One thing that must hold, as commands of bash that must all succeed."""

    commands: str
    nightly: bool = False  # takes long, and finds little that other steps do not


def table(nightly: bool) -> dict[str, Step]:
    """Return all steps by name, the longest first.

    Each test is run once: those of a member in an environment that has the member's dependencies
    alone, all others in the environment of the workspace. Exhaustive tests are run nightly.
    """
    short = "" if nightly else ' -m "not exhaustive"'
    every = "TINYLLM_TEST_ISAS=all " if nightly else ""
    # As many steps run at once as there are cores. Threads that wait for a part spin for a moment,
    # which slows down another step more than a second thread helps. The kernels are the exception.
    single = "" if nightly else "TINYLLM_NUM_THREADS=1 "
    # Most of these tests run whole models, so they check the signatures of the package of models.
    elsewhere = f" tests{short}{_checked('tinyllm-qwen', nightly)}"
    members = {_name(folder): folder for folder in [*ROOT.glob("packages/*"), *ROOT.glob("apps/*")]}
    steps = {
        # requests and sockets against a server, each with the time and memory that it may cost
        "attack": Step(
            f"{single}uv run --no-sync pytest -q tests/attack{' --full' if nightly else ''}"
        ),
        **{
            name: Step(
                f"{'' if name == 'tinyllm-kernels' else single}uv run --isolated --exact "
                f"--locked --package {name} pytest -q {folder.relative_to(ROOT)}{short}"
                f"{_checked(name, nightly)}"
            )
            for name, folder in sorted(members.items())
        },
        # the CPU kernels without MLX: under sanitizers, and for aarch64
        "native": Step(
            f"{every}bash packages/tinyllm-kernels/native/check/check.sh" if LINUX else "true"
        ),
        # the README's test command, without the tests of the steps above: these are not collected.
        # A short run leaves out the tests of tools, which no package needs.
        "workspace": Step(
            "uv run pytest -q\nuv run pytest -q tests tools -m exhaustive"
            if nightly
            else f"{single}uv run pytest -q{elsewhere}"
        ),
        # each wheel alone in an empty environment, running its README's example
        "wheels": Step("uv run --no-sync python tools/check_wheels.py"),
        # the commands of docs/depend.md, each in an empty project
        "depend": Step("uv run --no-sync python tools/check_depend.py"),
        # mypy --strict, member by member; nightly of tests and tools too
        "types": Step(
            "for source in packages/*/src apps/*/src .ci; do\n"
            '  uv run --no-sync mypy --strict "$source"\n'
            f"done\n{'bash tools/check_types.sh' if nightly else ''}"
        ),
        "docs": Step(
            "uv run --isolated --only-group docs --locked zensical build --clean --strict\n"
            "uv run --no-sync python tools/check_site.py site"
        ),
        # import contracts
        "contracts": Step("uv run --no-sync lint-imports"),
        "lint": Step("uv run --no-sync ruff check .\nuv run --no-sync ruff format --check ."),
        # metalhost with each compiler of this machine, and for aarch64
        "compilers": Step("bash packages/metalhost/tools/every_compiler.sh", nightly=True),
    }
    chosen = {name: step for name, step in steps.items() if nightly or not step.nightly}
    return {name: chosen.pop(name) for name in LONGEST} | chosen


def _checked(member: str, nightly: bool) -> str:
    """Return pytest's option for the run-time check of shapes and types in signatures.

    A short run checks the signatures of the member under test alone. The check takes up to 40
    percent of the time of tests, most of it for functions that another step checks.
    """
    if nightly or not member.startswith("tinyllm"):
        return ""
    return f" --jaxtyping-packages={member.replace('-', '_')},beartype.beartype"


def _name(member: Path) -> str:
    project: dict[str, str] = tomllib.loads((member / "pyproject.toml").read_text())["project"]
    return project["name"]


@dataclass(frozen=True)
class Outcome:
    """The end of a step."""

    name: str
    failed: bool
    seconds: float
    processor_seconds: float
    output: str


class Runner:
    """Runs steps in processes that end with this one."""

    def __init__(self, bytecode: Path) -> None:
        """Start nothing yet.

        Args:
            bytecode: a folder for Python's bytecode. Tests start several hundred processes, and
                images of containers often forbid bytecode, so that each compiles its imports. Each
                step has a folder of its own, because the hook that checks signatures also stores
                what it imports and does not check under the name for checked modules.
        """
        self._bytecode = bytecode
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def run(self, steps: dict[str, Step], at_once: int) -> Iterator[Outcome]:
        """Yield the outcomes of all steps, in the order of their ends."""
        with ThreadPoolExecutor(at_once) as pool:
            waiting: list[Future[Outcome]] = [
                pool.submit(self._run, name, step) for name, step in steps.items()
            ]
            try:
                for done in as_completed(waiting):
                    yield done.result()
            except BaseException:
                self._stop()
                raise

    def _run(self, name: str, step: Step) -> Outcome:
        began = time.monotonic()
        if self._stopped:
            return Outcome(name, failed=True, seconds=0.0, processor_seconds=0.0, output="")
        print(f"=== {name}", flush=True)
        environ = os.environ | {"PYTHONPYCACHEPREFIX": str(self._bytecode / name)}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", step.commands],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # a group, which can be ended as one
        )
        self._running.add(process)
        assert process.stdout is not None
        with process.stdout:
            output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self._running.discard(process)
        seconds, processor_seconds = time.monotonic() - began, usage.ru_utime + usage.ru_stime
        return Outcome(name, process.returncode != 0, seconds, processor_seconds, output)

    def _stop(self) -> None:
        self._stopped = True
        for process in list(self._running):
            os.killpg(process.pid, signal.SIGTERM)


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(".ci/run", description="Everything that must hold.")
    every = table(nightly=True)
    parser.add_argument("--only", nargs="+", metavar="STEP", choices=every, help="run these steps")
    parser.add_argument("--nightly", action="store_true", help="run the exhaustive tests as well")
    parser.add_argument("--list", action="store_true", help="print the names of the steps")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), metavar="N", help="steps at once (all cores)"
    )
    chosen = parser.parse_args(arguments)
    if chosen.jobs < 1:
        parser.error(f"--jobs: expected at least 1, got {chosen.jobs}")
    return chosen


def main() -> int:
    """Run the chosen steps, and return 1 if one of them failed."""
    chosen = options()
    steps = table(chosen.nightly)
    if chosen.list:
        print("\n".join(steps))
        return 0
    if chosen.only:
        every = table(nightly=True)
        steps = {name: steps.get(name, every[name]) for name in every if name in chosen.only}
    # A shell starts what runs in the background with Ctrl-C ignored. With a handler here, the steps
    # do not inherit that.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(1))
    began = time.monotonic()
    outcomes = []
    with tempfile.TemporaryDirectory() as bytecode:
        for outcome in Runner(Path(bytecode)).run(steps, chosen.jobs):
            state = "failed" if outcome.failed else "passed"
            used = f"{outcome.processor_seconds:.0f} s of processor time"
            print(f"\n=== {outcome.name}: {state} after {outcome.seconds:.0f} s, {used}")
            print(outcome.output, flush=True)
            outcomes.append(outcome)
    failed = [outcome.name for outcome in outcomes if outcome.failed]
    seconds = time.monotonic() - began
    print(f"=== {len(outcomes)} steps in {seconds:.0f} s, failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
