"""Times decoder layers and their parts: `uv run python tools/layers`.

`MLP`, `MoE` and `GroupedQueryAttention` compute one operation after the other. `DecoderLayer` is
computed by the stack of the OpSet, as in a model. The difference is the gain of the stack.
"""

import sys
from pathlib import Path

from tinyllm_bench.cli import show
from tinyllm_bench.command_line import command
from tinyllm_bench.settings import Settings
from tinyllm_cli.program import new_app, run_program

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the folder of all tools

app = new_app()


def _layers(settings: Settings) -> int:
    """Time decoder layers and their parts, for every OpSet."""
    from layers.cases import CASES  # imports MLX, which --help does not need
    from tinyllm_bench.run import Run

    return show(Run(settings, CASES))


app.command()(command(Settings, _layers, {"only": "ops"}, ("peers", "peer", "decode_tokens")))

if __name__ == "__main__":
    sys.exit(run_program(app, "layers"))
