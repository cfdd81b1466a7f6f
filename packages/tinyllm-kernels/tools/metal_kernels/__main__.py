"""Run Metal kernels with changed text: planted faults, and the optimization steps of the docs.

FOLDER = packages/tinyllm-kernels/tools/metal_kernels
uv run python FOLDER mutations              plant each fault of the tables, one at a time
uv run python FOLDER mutations --quick      plant the first fault of each kernel
uv run python FOLDER steps docs/kernels/metal/*.md    run each optimization step of the pages

A fault is found if metalhost reports it, or if the numbers miss the table of tolerances, under one
of the settings of `metalhost.SWEEP`. The command ends with status 1 if a fault is not found.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from cases import CASES
from metalhost import SWEEP
from mutation import MISSED, REPORTED, WRONG, mutations
from planting import planted
from step import steps


def plant(kernel: str | None, quick: bool) -> int:
    """Plant faults and print a table. Return 1 if a fault was not found, otherwise 0."""
    chosen = [mutation for mutation in mutations() if kernel in (None, mutation.kernel)]
    if quick:
        first = {mutation.kernel: mutation for mutation in reversed(chosen)}
        chosen = list(reversed(first.values()))
    kernels = dict.fromkeys(mutation.kernel for mutation in chosen)
    outcomes: Counter[tuple[str, str]] = Counter()
    missed = []
    with planted():
        for name in kernels:
            CASES[name]()  # the unchanged kernel must pass
    for mutation in chosen:
        outcome = mutation.outcome()
        outcomes[mutation.kernel, outcome] += 1
        if outcome == MISSED:
            missed.append(mutation)
    sys.stdout.write(
        f"| kernel | faults | {REPORTED} | {WRONG} | {MISSED} |\n|---|---|---|---|---|\n"
    )
    for name in kernels:
        counts = [outcomes[name, outcome] for outcome in (REPORTED, WRONG, MISSED)]
        cells = " | ".join(str(count) for count in (sum(counts), *counts))
        sys.stdout.write(f"| `{name}` | {cells} |\n")
    for mutation in missed:
        sys.stdout.write(f"{MISSED}: {mutation}\n")
    return 1 if missed else 0


def run_steps(pages: list[Path], quick: bool) -> int:
    """Run the optimization steps of the pages. A wrong step ends the command with its error."""
    for page in pages:
        for step in steps(page):
            step.run(SWEEP[:1] if quick else SWEEP)
            sys.stdout.write(f"{step}\n")
    return 0


def main() -> int:
    """Parse the command line and run the command."""
    parser = argparse.ArgumentParser(description="Run Metal kernels with changed text.")
    commands = parser.add_subparsers(dest="command", required=True)
    faults = commands.add_parser("mutations", help="plant faults")
    faults.add_argument("--quick", action="store_true", help="only the first fault of each kernel")
    faults.add_argument("--kernel", choices=sorted(CASES), help="only the faults of this kernel")
    pages = commands.add_parser("steps", help="run the optimization steps of pages")
    pages.add_argument("--quick", action="store_true", help="only the first setting of the sweep")
    pages.add_argument("pages", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "steps":
        return run_steps(arguments.pages, arguments.quick)
    return plant(arguments.kernel, arguments.quick)


if __name__ == "__main__":
    sys.exit(main())
