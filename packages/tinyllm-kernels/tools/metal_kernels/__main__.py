"""Metal kernels with another text: faults that have to be found, ladders that have to be right.

FOLDER = packages/tinyllm-kernels/tools/metal_kernels
uv run python FOLDER mutations              plant each fault of the tables and see that it is found
uv run python FOLDER mutations --quick      the first one of each kernel
uv run python FOLDER ladder docs/kernels/metal/*.md    run the rungs of pages, one by one

A fault is found if metalhost reports it, or if the numbers are wrong by the table of tolerances, by
one of the settings of `metalhost.SWEEP`. One that is not found ends the command with status 1.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from cases import CASES
from mutation import MISSED, REPORTED, WRONG, mutations
from planting import planted
from rung import rungs


def plant(kernel: str | None, quick: bool) -> int:
    """Plant faults and print a table; 1 if one was not found."""
    chosen = [mutation for mutation in mutations() if kernel in (None, mutation.kernel)]
    if quick:
        first = {mutation.kernel: mutation for mutation in reversed(chosen)}
        chosen = list(reversed(first.values()))
    kernels = dict.fromkeys(mutation.kernel for mutation in chosen)
    outcomes: Counter[tuple[str, str]] = Counter()
    missed = []
    with planted():
        for name in kernels:
            CASES[name]()  # without a fault none is found
    for mutation in chosen:
        how = mutation.found()
        outcomes[mutation.kernel, how] += 1
        if how == MISSED:
            missed.append(mutation)
    sys.stdout.write(
        f"| kernel | faults | {REPORTED} | {WRONG} | {MISSED} |\n|---|---|---|---|---|\n"
    )
    for name in kernels:
        counts = [outcomes[name, how] for how in (REPORTED, WRONG, MISSED)]
        cells = " | ".join(str(count) for count in (sum(counts), *counts))
        sys.stdout.write(f"| `{name}` | {cells} |\n")
    for mutation in missed:
        sys.stdout.write(f"{MISSED}: {mutation}\n")
    return 1 if missed else 0


def climb(pages: list[Path]) -> int:
    """Run the rungs of the pages; a wrong one ends the command with its error."""
    for page in pages:
        for rung in rungs(page):
            rung.climb()
            sys.stdout.write(f"{rung}\n")
    return 0


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Run Metal kernels with another text.")
    commands = parser.add_subparsers(dest="command", required=True)
    faults = commands.add_parser("mutations", help="plant faults")
    faults.add_argument("--quick", action="store_true", help="the first fault of each kernel alone")
    faults.add_argument("--kernel", choices=sorted(CASES), help="faults of this kernel alone")
    ladder = commands.add_parser("ladder", help="run the rungs of pages")
    ladder.add_argument("pages", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "ladder":
        return climb(arguments.pages)
    return plant(arguments.kernel, arguments.quick)


if __name__ == "__main__":
    sys.exit(main())
