"""Converts, and says what came of it."""

import shlex
import time
from pathlib import Path

import typer
from tinyllm_qwen import Conversion, convert
from tinyllm_qwen.config.quantization import PackedFormat

from tinyllm_convert.options import Options
from tinyllm_convert.progress import ProgressBar

_NAMED = 3  # matrices that are listed by name


def run(source: str, target: str, revision: str | None, options: Options) -> None:
    """Convert `source` into the folder `target`, and print a report.

    Raises:
        UsageError: if the options do not go together.
        ValueError: as `convert`.
        RuntimeError: as `convert`.
    """
    config = options.conversion_config()
    started = time.perf_counter()
    with ProgressBar() as bar:
        done = convert(source, Path(target), config, revision=revision, progress=bar)
    seconds = time.perf_counter() - started
    for line in report(done, target, config.packed, seconds):
        typer.echo(line)
    if "tokenizer.json" in done.copied:
        typer.echo(f"uv run chat --model {shlex.quote(target)}")
    else:
        typer.echo(
            f"convert: {source} has no tokenizer.json, without which chat cannot use {target}",
            err=True,
        )


def report(done: Conversion, target: str, packed: PackedFormat | None, seconds: float) -> list[str]:
    """What was made: its format, its size, what stayed as it was."""
    form = "not quantized"
    if packed is not None:
        form = f"{packed.mode}, {packed.bits} bits, groups of {packed.group_size}"
    lines = [
        f"{target}: {done.bits_per_weight:.2f} bits per weight ({form}), "
        f"{_size(done.source_bytes)} before, {_size(done.nbytes)} now, {seconds:.1f} s"
    ]
    if packed is not None and done.unquantized:
        named = ", ".join(done.unquantized[:_NAMED])
        more = ", ..." if len(done.unquantized) > _NAMED else ""
        lines.append(f"left as they were: {len(done.unquantized)} matrices ({named}{more})")
    return lines


def _size(nbytes: int) -> str:
    """Bytes as people read them."""
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 10**9 else f"{nbytes / 1e6:.1f} MB"
