"""Compares random schedules of the engine with `generate`, and counts their events.

uv run tools/schedules.py                 # 500 seeds: some minutes
uv run tools/schedules.py 20 1000         # 20 seeds from 1000 on
uv run tools/schedules.py 200 --hybrid    # a small Qwen3.5 with random weights

Of pico, two of five schedules have a draft model. Of Qwen3.5, two of three schedules have a draft
head, of random weights or of a model that counts, whose draft tokens are nearly always right. With
--hybrid, every second schedule continues with a second engine, which loads the prefix cache of the
first one. One of three schedules has failing steps. The tool stops and names the seed if a request
gets other tokens than alone, or if a page, a slot or a snapshot is not freed.
"""

import argparse
import logging
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import mlx.core as mx
from tinyllm_engine.testing import Oracle, Tally, run_schedule, sample_prompts
from tinyllm_kernels import BackendChoice
from tinyllm_qwen import Qwen, Tokenizer, load
from tinyllm_qwen.checkpoint.schema import expected_shapes
from tinyllm_qwen.testing import counting_model, hybrid_checkpoint


def main() -> None:
    """Run the schedules and print the sums of their events."""
    logging.disable(logging.ERROR)  # hides the log of steps that are made to fail
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", default=500, help="number of schedules")
    parser.add_argument("first", type=int, nargs="?", default=0, help="the first seed")
    parser.add_argument("--hybrid", action="store_true", help="a model with recurrent layers")
    options = parser.parse_args()
    if options.count < 1:
        parser.error(f"count: expected at least 1, got {options.count}")
    with TemporaryDirectory() as folder:
        run(options.count, options.first, options.hybrid, Path(folder))


def run(count: int, first: int, hybrid: bool, folder: Path) -> None:
    """Run the schedules of `count` seeds from `first` on; `folder` is for files of the model."""
    ops = BackendChoice.choose().ops
    models = load_models(hybrid, folder)
    oracles = [Oracle(*each) for each in models]
    first_model, tokenizer = models[0]
    prompts = sample_prompts(tokenizer)
    draft_models = [None, None, None, first_model, noise(first_model)] if not hybrid else [None]
    tally, began = Tally(), time.monotonic()
    for seed in range(first, first + count):
        number = seed // 3 % len(models)
        tally += run_schedule(
            *models[number],
            prompts,
            oracles[number],
            seed,
            draft_model=draft_models[seed % len(draft_models)],
            failures=0.0 if seed % 3 else 0.05,
            prefix_cache_path=folder / "prefixes" if hybrid and seed % 2 else None,
        )
        print(f"\r{seed - first + 1} of {count} schedules", end="", file=sys.stderr, flush=True)
    print(f"\r{count} schedules from seed {first} on, ops {ops.name}, ", end="")
    print(f"{time.monotonic() - began:.0f} s, all tokens as alone, all pages and slots free:")
    for name, number in asdict(tally).items():
        print(f"  {number:10,} {name.replace('_', ' ')}")


def load_models(hybrid: bool, folder: Path) -> list[tuple[Qwen, Tokenizer]]:
    """Load pico, or small models of Qwen3.5: without and with a draft head, and counting."""
    ops = BackendChoice.choose().ops
    if not hybrid:
        return [load("pico", ops=ops, dtype=mx.float32)]
    source = hybrid_checkpoint(folder / "qwen35")
    return [
        load(source, ops=ops, dtype=mx.float32),
        load(source, ops=ops, dtype=mx.float32, draft_head=True),
        counting_model(folder / "counting", ops),
    ]


def noise(model: Qwen) -> Qwen:
    """Return a draft model whose tokens are wrong: one layer with random weights."""
    config = replace(model.config, num_hidden_layers=1)
    mx.random.seed(1)
    shapes = expected_shapes(config).items()
    weights = {name: 0.1 * mx.random.normal(shape) for name, shape in shapes}
    return Qwen(config, weights, ops=model.ops)


if __name__ == "__main__":
    main()
