"""The command line: `bench roofline`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tinyllm_bench.closed_pipe import closed_pipe_is_no_error

if TYPE_CHECKING:
    from tinyllm_ops import OpSet

    from tinyllm_bench.machine import Machine
    from tinyllm_bench.roofline.curve import Curve
    from tinyllm_bench.roofline.roofs import Roofs
    from tinyllm_bench.settings import Settings

roofing = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

_CEILING_SECONDS = 1.0


@roofing.command()
def roofline(
    shape: Annotated[
        str, typer.Option(metavar="NAME", help="As of bench: pico, qwen3-0.6b, ...")
    ] = "qwen3-0.6b",
    bits: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Of random weights; may be repeated. [default: 4, 8, 16]"),
    ] = None,
    dtype: Annotated[
        str, typer.Option(metavar="float32|float16|bfloat16", help="Of the arithmetic.")
    ] = "bfloat16",
    ops: Annotated[str, typer.Option(metavar="NAME", help="What computes.")] = "auto",
    peak: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TFLOPS",
            help="What else multiplies here, as benches/run.sh peak says; may be repeated.",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(metavar="S", help="Time budget of each size.")] = 0.5,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw an image: .png, .svg or .pdf.")
    ] = None,
) -> int:
    """Time products and attention from one token to a prompt, beside what the machine can do.

    A product of few tokens reads and one of many multiplies: the slower of both is the limit, the
    roof, as high as memory and the units that multiply allow.
    """
    from tinyllm_kernels import Arithmetic  # with MLX, as all that follows

    from tinyllm_bench.machine import Machine
    from tinyllm_bench.plot import check_plot
    from tinyllm_bench.roofline.plot import draw_roofline
    from tinyllm_bench.roofline.report import heading, json_report, print_roofline
    from tinyllm_bench.roofline.roofs import named_peaks
    from tinyllm_bench.settings import Settings

    given = named_peaks(peak or ())
    forms = [
        Settings(shape=shape, bits=each, dtype=dtype, seconds=seconds, plot=plot)
        for each in bits or (4, 8, 16)
    ]
    if plot is not None:
        check_plot(plot)
    machine = Machine.here()
    roofs, curves = _measure(machine, Arithmetic.choose(ops, dtype).ops, forms, given)
    title = heading(machine, shape, roofs)
    with closed_pipe_is_no_error():
        if json:
            sys.stdout.write(json_report(machine, shape, roofs, curves) + "\n")
        else:
            print_roofline(title, roofs, curves)
    if plot is not None:
        draw_roofline(title, roofs, curves, plot)
        sys.stderr.write(f"bench: wrote {plot}\n")
    return 0


def _measure(
    machine: "Machine", ops: "OpSet", forms: "list[Settings]", given: dict[str, float]
) -> "tuple[Roofs, list[Curve]]":
    """The ceilings before and after, and between them each form of the weights; attention once."""
    from tinyllm_bench.ceilings import measure_ceilings
    from tinyllm_bench.progress import ProgressLine
    from tinyllm_bench.roofline.curve import attention_curves, product_curves
    from tinyllm_bench.roofline.roofs import Roofs
    from tinyllm_bench.subject import Subject

    budget = min(_CEILING_SECONDS, 2 * forms[0].seconds)
    curves: list[Curve] = []
    with ProgressLine() as progress:
        progress.begin("what the machine can do")
        before = measure_ceilings(machine, budget)
        for place, settings in enumerate(forms):
            progress.begin("making the weights")
            subject = Subject.make(settings)
            found = product_curves(subject) + ([] if place else attention_curves(subject))
            for curve in found:
                progress.begin(curve.name)
                curve.measure(ops, settings)
            curves += found
        progress.begin("what the machine can do")
        ceilings = before.best(measure_ceilings(machine, budget))
    return Roofs.of(ceilings, given), curves
