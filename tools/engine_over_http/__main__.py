"""Compares an engine with a server of the same model, in turns.

uv run python tools/engine_over_http --shape qwen3-0.6b    # the options are those of bench engine
"""

import sys
from pathlib import Path

from tinyllm_bench.command_line import command
from tinyllm_bench.serving.options import EngineOptions
from tinyllm_cli.program import new_app, run_program

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the folder of all tools

app = new_app()


def main(options: EngineOptions) -> int:
    """Time many requests in an engine and in a server of the same model, in turns."""
    from engine_over_http.http_target import HttpTarget, http_target
    from tinyllm_bench.models.model import BenchModel  # imports MLX, unlike --help
    from tinyllm_bench.serving.engine import EngineTarget, LoadResults, write_results
    from tinyllm_bench.settings import Settings
    from tinyllm_kernels import BackendChoice

    ops, most = BackendChoice.choose(options.ops, options.dtype).ops, max(options.requests)
    settings = Settings(shape=options.shape, bits=options.bits, dtype=options.dtype)
    model = BenchModel.make(settings)
    with http_target(model, ops.name, options.dtype, most) as server:
        engine = EngineTarget(model, ops, most)  # after the checkpoint of the server is written
        targets: dict[str, EngineTarget | HttpTarget] = {"engine": engine, "over HTTP": server}
        for target in targets.values():
            target.batch(1, 4)  # warm-up
        rounds = [
            [
                {name: each.batch(size, options.tokens, seed) for name, each in targets.items()}
                for size in options.requests
            ]
            for seed in range(options.rounds)
        ]
        results = {}
        for name, target in targets.items():
            batches = [[size[name] for size in sizes] for sizes in rounds]
            prompt = target.long_prompt(options.prompt, every=1.0) if options.prompt else None
            results[name] = LoadResults(batches, prompt)
    write_results(options, ops, results)
    return 0


app.command()(command(EngineOptions, main))

if __name__ == "__main__":
    sys.exit(run_program(app, "engine_over_http"))
