"""Draws the JSON document of a benchmark.

uv run bench --json > bench.json && uv run python tools/plot bench.json bench.png
uv run bench serve --rate 1 --rate 8 --json > load.json && uv run python tools/plot load.json a.svg
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from tinyllm_cli.program import new_app, run_program

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the folder of all tools

from plot.images import check_image

app = new_app()


@app.command()
def main(
    document: Annotated[Path, typer.Argument(help="JSON of `bench` or tools/cpu_kernels.")],
    image: Annotated[Path, typer.Argument(help="The image: .png, .svg or .pdf.")],
) -> int:
    """Draw the JSON document of `bench`, of `bench serve` or of `tools/cpu_kernels`."""
    from plot.bench import figure_of_bench
    from plot.cpu_kernels import figure_of_kernels
    from plot.serving import figure_of_servers

    check_image(image)
    content = json.loads(document.read_text())
    draw = {"results": figure_of_bench, "servers": figure_of_servers, "parts": figure_of_kernels}
    kind = next((each for each in draw if isinstance(content, dict) and each in content), None)
    if kind is None:
        raise ValueError(f"{document}: expected JSON of bench, bench serve or tools/cpu_kernels")
    draw[kind](content).savefig(image, dpi=120)
    return 0


if __name__ == "__main__":
    sys.exit(run_program(app, "plot"))
