"""Draws the pictures of docs/learn and docs/gated-delta-net.md: `uv run python tools/learn`."""

import argparse
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the folder of all tools

from learn.pages import LEARN
from learn.pictures import PICTURES
from learn.state_picture import STATE_PICTURE, draw_state_memory

if __name__ == "__main__":
    description = "Draw the pictures of docs/learn and docs/gated-delta-net.md."
    argparse.ArgumentParser(description=description).parse_args()
    for name, draw in PICTURES.items():
        path = LEARN / "img" / f"{name}.svg"
        path.write_text(draw(), encoding="utf-8")
        print(path)
    STATE_PICTURE.write_text(draw_state_memory(), encoding="utf-8")
    print(STATE_PICTURE)
