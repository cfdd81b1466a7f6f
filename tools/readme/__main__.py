"""Draws the pictures of README.md: `uv run python tools/readme`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the folder of all tools

from readme.pictures import IMAGES, PICTURES

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        path = IMAGES / f"{name}.svg"
        path.write_text(draw(), encoding="utf-8")
        print(path)
