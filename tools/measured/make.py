"""Measure the numbers of docs/measured.md, print its tables and draw its plots into docs/img.

uv run tools/measured/make.py             # all, a minute
uv run tools/measured/make.py angles      # one of: angles, caches, loading, parity
"""

import sys
from pathlib import Path

import angles
import caches
import loading
import parity

IMAGES = Path(__file__).parents[2] / "docs" / "img"
PARTS = {"angles": angles, "caches": caches, "loading": loading, "parity": parity}


def main() -> None:
    """Make the parts that are named, or all."""
    unknown = set(sys.argv[1:]) - set(PARTS)
    if unknown:
        sys.exit(f"expected some of {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    for name in sys.argv[1:] or PARTS:
        print(f"{name}:\n\n{PARTS[name].draw(IMAGES / f'{name}.png')}\n", flush=True)


if __name__ == "__main__":
    main()
