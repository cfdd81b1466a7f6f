"""Run a conversion and report its result."""

import shlex
import time
from pathlib import Path

import typer
from tinyllm_qwen import Conversion, convert
from tinyllm_qwen.config.quantization import PackedFormat

from tinyllm_convert.options import Options
from tinyllm_convert.progress import ProgressBar

_MAX_LISTED = 3  # unquantized matrices that the report names


def run(source: str, target: str, revision: str | None, options: Options, chat: str) -> None:
    """Convert `source` into the folder `target`, and print a report.

    The report ends with a command that begins with `chat` and talks to the new model.

    Raises:
        UsageError: if options contradict each other.
        ValueError, RuntimeError: as `tinyllm_qwen.convert`.
    """
    config = options.conversion_config()
    started = time.perf_counter()
    with ProgressBar() as bar:
        done = convert(source, Path(target), config, revision=revision, progress=bar)
    seconds = time.perf_counter() - started
    for line in report(done, target, config.packed, seconds):
        typer.echo(line)
    for notice in done.notices:
        typer.echo(f"convert: {notice}", err=True)
    if "tokenizer.json" in done.copied:
        typer.echo(f"{chat} --model {shlex.quote(target)}")
    else:
        typer.echo(
            f"convert: {source} has no tokenizer.json, so chat cannot use {target}",
            err=True,
        )


def report(done: Conversion, target: str, packed: PackedFormat | None, seconds: float) -> list[str]:
    """Return lines with the format, the size and the unquantized matrices of a conversion."""
    packing = "not quantized"
    if packed is not None:
        packing = f"{packed.mode}, {packed.bits} bits, groups of {packed.group_size}"
    lines = [
        f"{target}: {done.bits_per_weight:.2f} bits per weight ({packing}), "
        f"{_size(done.source_bytes)} before, {_size(done.nbytes)} now, {seconds:.1f} s"
    ]
    if packed is not None and done.unquantized:
        listed = ", ".join(done.unquantized[:_MAX_LISTED])
        more = ", ..." if len(done.unquantized) > _MAX_LISTED else ""
        lines.append(f"not quantized: {len(done.unquantized)} matrices ({listed}{more})")
    return lines


def _size(nbytes: int) -> str:
    """Return a number of bytes in GB or MB."""
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 10**9 else f"{nbytes / 1e6:.1f} MB"
