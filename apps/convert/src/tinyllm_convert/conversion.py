"""Run a conversion and report its result."""

import math
import shlex
import time
from pathlib import Path

import typer
from tinyllm_cli.messages import UsageError, notice
from tinyllm_ops.quantization.tensor import (
    AFFINE_BITS,
    AFFINE_GROUPS,
    FLOAT_MODES,
    QUANTIZATION_MODES,
    is_quantization_mode,
)
from tinyllm_qwen import Conversion, ConversionConfig, convert
from tinyllm_qwen.checkpoint.tensor_reader import MLX_DTYPES
from tinyllm_qwen.config.quantization import PackedFormat

from tinyllm_convert.options import Options
from tinyllm_convert.progress import ProgressBar

_DTYPES = {str(dtype).removeprefix("mlx.core."): dtype for dtype in MLX_DTYPES.values()}
_DEFAULT_GROUP_SIZE = 64
_MAX_LISTED = 3  # unquantized matrices that the report names


def convert_and_report(options: Options, chat: str) -> None:
    """Convert `options.source` into the folder `options.target`, and print a report.

    The report ends with a command that begins with `chat` and talks to the new model.

    Raises:
        UsageError: if options contradict each other.
        ValueError, RuntimeError: as `tinyllm_qwen.convert`.
    """
    config, target = conversion_config(options), options.target
    started = time.perf_counter()
    with ProgressBar() as bar:
        done = convert(
            options.source, Path(target), config, revision=options.revision, progress=bar
        )
    seconds = time.perf_counter() - started
    for line in report(done, target, config.packed, seconds):
        typer.echo(line)
    for text in done.notices:
        notice(text, "convert")
    if "tokenizer.json" in done.copied:
        typer.echo(f"{chat} --model {shlex.quote(target)}")
    else:
        notice(f"{options.source} has no tokenizer.json, so chat cannot use {target}", "convert")


def conversion_config(options: Options) -> ConversionConfig:
    """Return the options as the config of a conversion.

    Raises:
        UsageError: if a value is not allowed, or options contradict each other.
    """
    packed = _format(options)
    if options.skip and packed is None:
        raise UsageError(
            "--skip: expected --bits or --mode as well: nothing is quantized without them"
        )
    if options.dtype is not None:
        _check_choice("--dtype", options.dtype, tuple(_DTYPES))
    shard_bytes = options.shard_size * 1e9
    if not 1 <= shard_bytes < math.inf:  # refuses NaN too: comparisons with NaN are false
        raise UsageError(
            "--shard-size: expected a finite number of gigabytes above 0, got "
            f"{options.shard_size:g}"
        )
    return ConversionConfig(
        packed=packed,
        dtype=None if options.dtype is None else _DTYPES[options.dtype],
        skip=tuple(options.skip or ()),
        shard_bytes=int(shard_bytes),
    )


def _format(options: Options) -> PackedFormat | None:
    """Return the format of quantized matrices; None if nothing is quantized."""
    mode, bits, group_size = options.mode, options.bits, options.group_size
    if mode is not None and not is_quantization_mode(mode):
        raise _choice_error("--mode", mode, QUANTIZATION_MODES)
    if mode in FLOAT_MODES:
        for option, given, fixed in zip(
            ("--bits", "--group-size"), (bits, group_size), FLOAT_MODES[mode], strict=True
        ):
            if given not in (None, fixed):
                raise UsageError(
                    f"{option}: expected {fixed}, the only value of {mode}, got {given}"
                )
        bits, group_size = FLOAT_MODES[mode]
        return PackedFormat(group_size=group_size, bits=bits, mode=mode)
    if bits is None:
        for option, value in (("--group-size", group_size), ("--mode", mode)):
            if value is not None:
                raise UsageError(f"{option} {value}: expected --bits as well")
        return None
    group_size = _DEFAULT_GROUP_SIZE if group_size is None else group_size
    _check_choice("--bits", bits, AFFINE_BITS)
    _check_choice("--group-size", group_size, AFFINE_GROUPS)
    return PackedFormat(group_size=group_size, bits=bits)


def _check_choice(option: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise _choice_error(option, value, allowed)


def _choice_error(option: str, value: object, allowed: tuple[object, ...]) -> UsageError:
    return UsageError(f"{option}: expected one of {', '.join(map(str, allowed))}, got {value}")


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
