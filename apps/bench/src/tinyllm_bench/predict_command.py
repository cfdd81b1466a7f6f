"""The command line: `bench predict`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tinyllm_bench.closed_pipe import closed_pipe_is_no_error
from tinyllm_bench.errors import UsageError
from tinyllm_bench.settings import IMAGES

if TYPE_CHECKING:
    from tinyllm_bench.parallel.blueprint import Blueprint
    from tinyllm_bench.parallel.link import Link

predicting = typer.Typer(
    add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)

_MOST = 64
_MEASURING = 0.5  # seconds
_DTYPES = ("float32", "float16", "bfloat16")


@predicting.command()
def predict(
    shape: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="As of bench. [default: qwen3-0.6b]"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="ID", help="A checkpoint instead: a folder, owner/name, or pico."),
    ] = None,
    bits: Annotated[
        int | None, typer.Option(metavar="N", help="Of a shape's weights. [default: 4]")
    ] = None,
    group_size: Annotated[
        int | None, typer.Option(metavar="N", help="Numbers that share a scale. [default: 64]")
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="affine, mxfp4, mxfp8 or nvfp4. [default: affine]"),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(metavar="float32|float16|bfloat16", help="Of what ranks tell each other."),
    ] = "bfloat16",
    ranks: Annotated[
        int, typer.Option(metavar="N", help="How many at most.", min=1, max=_MOST)
    ] = 8,
    context: Annotated[
        int, typer.Option(metavar="N", help="Tokens in the cache.", min=0, max=1_000_000)
    ] = 512,
    link: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this link; may be repeated. [default: all]"),
    ] = None,
    bandwidth: Annotated[
        float | None, typer.Option(metavar="MB/S", help="Of a link of your own, beside --latency.")
    ] = None,
    latency: Annotated[
        float | None, typer.Option(metavar="US", help="Of it, from one process to the next.")
    ] = None,
    read: Annotated[
        float | None,
        typer.Option(metavar="GB/S", help="What a rank reads. [default: measured here]"),
    ] = None,
    alone: Annotated[
        float | None,
        typer.Option(
            metavar="TOKENS/S",
            help="What one rank reaches: what is beyond reading is taken as not divided.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw an image: .png, .svg or .pdf.")
    ] = None,
) -> int:
    """Predict how fast one model over several ranks decodes, over which network.

    Counts the bytes that a rank reads, the messages that ranks exchange and those that wait for
    each other. Nothing is loaded: a checkpoint's headers are read, a shape needs no file.
    """
    from tinyllm_bench.parallel.plot import draw_predictions  # with MLX, as all that follows
    from tinyllm_bench.parallel.prediction import Assumptions, predict
    from tinyllm_bench.parallel.report import heading, json_report, print_predictions
    from tinyllm_bench.plot import check_plot

    for option, value in (("--read", read), ("--alone", alone)):
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"{option}: expected a number above 0, got {value}")
    if dtype not in _DTYPES:
        raise UsageError(f"--dtype: expected one of {', '.join(_DTYPES)}, got {dtype}")
    if plot is not None:
        if plot.suffix.lower() not in IMAGES:
            raise UsageError(f"--plot: expected one of {', '.join(IMAGES)}, got {plot.suffix}")
        check_plot(plot)
    links = _links(link, bandwidth, latency)
    blueprint = _blueprint(shape, model, bits, group_size, mode, dtype)
    longest = blueprint.config.context_length
    if context > longest:
        raise UsageError(
            f"--context: expected at most {longest}, the context of {blueprint.name}, got {context}"
        )
    rate = 1e9 * (_measured_read() if read is None else read)
    given = Assumptions.of_one(blueprint, rate, alone, context)
    found, refusal = {}, ""
    for each in links:
        found[each], refusal = predict(blueprint, each, ranks, given)
    if refusal:
        sys.stderr.write(f"bench: {refusal}\n")
    with closed_pipe_is_no_error():
        if json:
            sys.stdout.write(json_report(blueprint, given, found) + "\n")
        else:
            print_predictions(blueprint, given, found)
    if plot is not None:
        draw_predictions(heading(blueprint, given), found, plot)
        sys.stderr.write(f"bench: wrote {plot}\n")
    return 0


def _links(names: list[str] | None, bandwidth: float | None, latency: float | None) -> "list[Link]":
    """Those that were named, and one of the user's own; all without either."""
    from tinyllm_bench.parallel.link import LINKS, Link, named_link

    if (bandwidth is None) != (latency is None):
        raise UsageError("--bandwidth, --latency: expected both, of one link, or neither")
    chosen = [named_link(name) for name in dict.fromkeys(names or ())]
    if bandwidth is not None and latency is not None:
        name = f"{bandwidth:g} MB/s, {latency:g} us"
        chosen.append(Link(name, bandwidth * 1e6, latency * 1e-6))
    return chosen or list(LINKS.values())


def _blueprint(
    shape: str | None,
    model: str | None,
    bits: int | None,
    group_size: int | None,
    mode: str | None,
    dtype: str,
) -> "Blueprint":
    """The checkpoint, or the shape."""
    from tinyllm_bench.parallel.blueprint import Blueprint

    if model is None:
        kind = ("affine" if mode is None else mode, dtype)
        sizes = (4 if bits is None else bits, 64 if group_size is None else group_size)
        return Blueprint.of_shape(shape or "qwen3-0.6b", *sizes, *kind)
    for option, value in (
        ("--shape", shape),
        ("--bits", bits),
        ("--group-size", group_size),
        ("--mode", mode),
    ):
        if value is not None:
            raise UsageError(f"{option}: is for a model without a checkpoint, which --model has")
    return Blueprint.of_checkpoint(model, dtype)


def _measured_read() -> float:
    """Billions of bytes a second that this machine reads."""
    from tinyllm_bench.ceilings import measure_ceilings
    from tinyllm_bench.machine import Machine

    return measure_ceilings(Machine.here(), _MEASURING).read_gbps
