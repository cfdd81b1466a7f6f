"""Compares random schedules of the engine with `generate`, and counts their events.

uv run tools/schedules.py             # 500 seeds: some minutes
uv run tools/schedules.py 20 1000     # 20 seeds from 1000 on

Two of five schedules have a draft model, one of three has failing steps. The tool stops and names
the seed if a request gets other tokens than alone, or if a page is not freed.
"""

import logging
import sys
import time
from dataclasses import asdict, replace

import mlx.core as mx
from tinyllm_engine.testing import Oracle, Tally, run_schedule, sample_prompts
from tinyllm_kernels import Arithmetic
from tinyllm_qwen import Qwen, load
from tinyllm_qwen.checkpoint.schema import expected_shapes


def main() -> None:
    """Run the schedules and print the sums of their events."""
    logging.disable(logging.ERROR)  # hides the log of steps that are made to fail
    count, first = [*map(int, sys.argv[1:]), *(500, 0)[len(sys.argv) - 1 :]]
    ops = Arithmetic.choose().ops
    model, tokenizer = load("pico", ops=ops, dtype=mx.float32)
    prompts, oracle = sample_prompts(tokenizer), Oracle(model, tokenizer)
    drafts = [None, None, None, model, noise(model)]
    tally, began = Tally(), time.monotonic()
    for seed in range(first, first + count):
        draft = drafts[seed % len(drafts)]
        failures = 0.0 if seed % 3 else 0.05
        tally += run_schedule(
            model, tokenizer, prompts, oracle, seed, draft=draft, failures=failures
        )
        print(f"\r{seed - first + 1} of {count} schedules", end="", file=sys.stderr, flush=True)
    print(f"\r{count} schedules from seed {first} on, ops {ops.name}, ", end="")
    print(f"{time.monotonic() - began:.0f} s, all tokens as alone, all pages free:")
    for name, number in asdict(tally).items():
        print(f"  {number:10,} {name.replace('_', ' ')}")


def noise(model: Qwen) -> Qwen:
    """Return a draft model whose tokens are wrong: one layer with random weights."""
    config = replace(model.config, num_hidden_layers=1)
    mx.random.seed(1)
    shapes = expected_shapes(config).items()
    weights = {name: 0.1 * mx.random.normal(shape) for name, shape in shapes}
    return Qwen(config, weights, ops=model.ops)


if __name__ == "__main__":
    main()
