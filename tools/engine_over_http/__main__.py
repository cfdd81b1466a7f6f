"""Compares an engine with a server of the same model, in turns.

uv run python tools/engine_over_http --shape qwen3-0.6b    # the options are those of bench engine
"""

import sys
from pathlib import Path

from tinyllm_bench.command_line import command, new_app, run_program
from tinyllm_bench.serving.options import EngineOptions

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the folder of all tools

app = new_app()


def main(options: EngineOptions) -> int:
    """Time many requests in an engine and in a server of the same model, in turns."""
    from engine_over_http.http_target import http_target
    from tinyllm_bench.models.model import BenchModel  # imports MLX, which --help does not need
    from tinyllm_bench.serving.engine import EngineTarget, measure
    from tinyllm_bench.settings import Settings
    from tinyllm_kernels import Arithmetic

    ops, most = Arithmetic.choose(options.ops, options.dtype).ops, max(options.sizes)
    settings = Settings(shape=options.shape, bits=options.bits, dtype=options.dtype)
    model = BenchModel.make(settings)
    engine = EngineTarget.of(model, ops, most)
    with http_target(model, ops.name, options.dtype, most) as server:
        measure(options, ops, {"engine": engine, "over HTTP": server})
    return 0


app.command()(command(EngineOptions, main))

if __name__ == "__main__":
    sys.exit(run_program(app, "engine_over_http"))
