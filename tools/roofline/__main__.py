"""Compares products and attention with the roofline of the machine.

uv run python tools/roofline --plot roofline.png    # qwen3-0.6b, in 4, 8 and 16 bits

`packages/tinyllm-kernels/native/bench/run.sh peak` measures further peaks for `--peak`.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from tinyllm_bench.command_line import command, option
from tinyllm_cli.messages import notice
from tinyllm_cli.program import new_app, run_program

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the folder of all tools

from plot.images import check_image

_CEILING_SECONDS = 1.0

app = new_app()


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a roofline."""

    shape: str = option(
        "qwen3-0.6b", "NAME", "A shape of bench without experts: pico, qwen3-0.6b, ..."
    )
    bits: list[int] = option(
        [], "N", "Bits of random weights; may be repeated. [default: 4, 8, 16]"
    )
    dtype: str = option("bfloat16", "float32|float16|bfloat16", "Type of activations.")
    ops: str = option("auto", "NAME", "OpSet.")
    peak: list[str] = option(
        [], "NAME=TFLOPS", "A further peak, from native/bench/run.sh peak; may be repeated."
    )
    seconds: float = option(0.5, "S", "Time for each size.")
    as_json: bool = option(False, None, "Print JSON instead of a table.", "--json")
    plot: Path | None = option(None, "FILE", "Draw an image: .png, .svg or .pdf.")


def main(options: Options) -> int:
    """Time products and attention from one token to a prompt, beside the machine's limits.

    A product of few tokens is limited by reading, a product of many tokens by multiplying. The
    slower of both is the limit, the roofline.
    """
    from roofline.kernels import Kernel, attention_kernels, check_shape, product_kernels
    from roofline.limits import Limits, named_peaks
    from roofline.report import draw_roofline, heading, json_report, print_roofline
    from tinyllm_bench.ceilings import measure_ceilings  # imports MLX, which --help does not need
    from tinyllm_bench.machine import Machine
    from tinyllm_bench.models.model import BenchModel
    from tinyllm_bench.report.tables import progress_line
    from tinyllm_bench.settings import Settings
    from tinyllm_kernels import BackendChoice

    peaks = named_peaks(options.peak)
    settings = [
        Settings(shape=options.shape, bits=bits, dtype=options.dtype, seconds=options.seconds)
        for bits in options.bits or (4, 8, 16)
    ]
    check_shape(options.shape)
    check_image(options.plot)
    machine, ops = Machine.here(), BackendChoice.choose(options.ops, options.dtype).ops
    budget = min(_CEILING_SECONDS, 2 * options.seconds)
    kernels: list[Kernel] = []
    with progress_line() as progress:
        progress("ceilings of the machine", 0)
        before = measure_ceilings(machine, budget)
        for i, each in enumerate(settings):
            progress("making the weights", 0)
            model = BenchModel.make(each)
            found = product_kernels(model) + (attention_kernels(model) if i == 0 else [])
            for kernel in found:
                progress(kernel.name, 0)
                kernel.measure(ops, options.seconds)
            kernels += found
        progress("ceilings of the machine", 0)
        limits = Limits.of(before.best(measure_ceilings(machine, budget)), peaks)
    title = heading(machine, options.shape, limits)
    if options.as_json:
        sys.stdout.write(json_report(machine, options.shape, limits, kernels) + "\n")
    else:
        print_roofline(title, limits, kernels)
    if options.plot is not None:
        draw_roofline(title, limits, kernels, options.plot)
        notice(f"wrote {options.plot}", "roofline")
    return 0


app.command()(command(Options, main))

if __name__ == "__main__":
    sys.exit(run_program(app, "roofline"))
