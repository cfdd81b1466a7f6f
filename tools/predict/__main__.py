"""Predicts the decoding speed of one model on several ranks.

uv run python tools/predict                                   # qwen3-0.6b, 4 bits, 1 to 8 ranks
uv run python tools/predict --model path/to/a/checkpoint --ranks 4 --link 10gbe
uv run python tools/predict --bandwidth 100 --latency 500     # MB/s, microseconds per hop

docs/parallel.md has the formulas and the sources of the numbers of links.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from tinyllm_bench.command_line import command, option
from tinyllm_cli.messages import UsageError, notice
from tinyllm_cli.program import new_app, run_program

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the folder of all tools

from plot.images import check_image
from predict.link import LINKS, Link, named_link

_MEASURING = 0.5  # seconds
_DTYPES = ("float32", "float16", "bfloat16")

app = new_app()


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a prediction.

    Raises:
        UsageError: if a value is out of its range, or two options exclude each other.
    """

    shape: str | None = option(None, "NAME", "A shape of bench. [default: qwen3-0.6b]")
    model: str | None = option(None, "ID", "A checkpoint instead: a folder, owner/name, or pico.")
    bits: int | None = option(None, "N", "Bits of the weights of a shape. [default: 4]")
    group_size: int | None = option(None, "N", "Weights that share a scale. [default: 64]")
    mode: str | None = option(None, "MODE", "affine, mxfp4, mxfp8 or nvfp4. [default: affine]")
    dtype: str = option("bfloat16", "|".join(_DTYPES), "Type of the exchanged numbers.")
    ranks: int = option(8, "N", "Most ranks.", min=1, max=64)
    context: int = option(512, "N", "Tokens in the cache.", min=0, max=1_000_000)
    link: list[str] = option([], "NAME", "Only this link; may be repeated. [default: all]")
    bandwidth: float | None = option(None, "MB/S", "A link of your own, with --latency.")
    latency: float | None = option(None, "US", "Its latency between two processes.")
    read: float | None = option(None, "GB/S", "Reading speed of a rank. [default: measured]")
    alone: float | None = option(
        None, "TOKENS/S", "Speed of one rank. Its time beyond reading counts as not divided."
    )
    as_json: bool = option(False, None, "Print JSON instead of tables.", "--json")
    plot: Path | None = option(None, "FILE", "Draw an image: .png, .svg or .pdf.")

    def __post_init__(self) -> None:
        """Check the ranges, and options that exclude each other."""
        for name, value in (("--read", self.read), ("--alone", self.alone)):
            if value is not None and not 0 < value < float("inf"):
                raise UsageError(f"{name}: expected a number above 0, got {value}")
        if self.dtype not in _DTYPES:
            raise UsageError(f"--dtype: expected one of {', '.join(_DTYPES)}, got {self.dtype}")
        of_shape = {
            "--shape": self.shape,
            "--bits": self.bits,
            "--group-size": self.group_size,
            "--mode": self.mode,
        }
        for name, given in of_shape.items():
            if self.model is not None and given is not None:
                raise UsageError(f"{name}: is for a shape; --model has its own")

    @property
    def links(self) -> list[Link]:
        """The named links and the user's own link, or all links."""
        if (self.bandwidth is None) != (self.latency is None):
            raise UsageError("--bandwidth, --latency: expected both, of one link, or neither")
        chosen = [named_link(name) for name in dict.fromkeys(self.link)]
        if self.bandwidth is not None and self.latency is not None:
            name = f"{self.bandwidth:g} MB/s, {self.latency:g} us"
            chosen.append(Link(name, self.bandwidth * 1e6, self.latency * 1e-6))
        return chosen or list(LINKS.values())


def main(options: Options) -> int:
    """Predict the decoding speed of one model on several ranks, over several networks.

    Counts the bytes that a rank reads, the messages that ranks exchange, and the messages that wait
    for each other. No weights are loaded: the headers of a checkpoint are read, a shape needs no
    file.
    """
    from predict.model_spec import ModelSpec  # imports MLX, which --help does not need
    from predict.prediction import Assumptions, predict
    from predict.report import draw_predictions, heading, json_report, print_predictions

    check_image(options.plot)
    links = options.links
    if options.model is None:
        shape = options.shape or "qwen3-0.6b"
        sizes = (options.bits, options.group_size, options.mode)
        model = ModelSpec.of_shape(shape, *sizes, options.dtype)
    else:
        model = ModelSpec.of_checkpoint(options.model, options.dtype)
    longest = model.config.context_length
    if options.context > longest:
        raise UsageError(
            f"--context: expected at most {longest}, the context of {model.name}, "
            f"got {options.context}"
        )
    rate = 1e9 * (_measured_read() if options.read is None else options.read)
    given = Assumptions.of_one(model, rate, options.alone, options.context)
    found, refusal = {}, ""
    for each in links:
        found[each], refusal = predict(model, each, options.ranks, given)
    if refusal:
        notice(refusal, "predict")
    if options.as_json:
        sys.stdout.write(json_report(model, given, found) + "\n")
    else:
        print_predictions(model, given, found)
    if options.plot is not None:
        draw_predictions(heading(model, given), found, options.plot)
        notice(f"wrote {options.plot}", "predict")
    return 0


def _measured_read() -> float:
    """Return the gigabytes per second that this machine reads."""
    from tinyllm_bench.ceilings import measure_ceilings
    from tinyllm_bench.machine import Machine

    return measure_ceilings(Machine.here(), _MEASURING).read_gbps


app.command()(command(Options, main))

if __name__ == "__main__":
    sys.exit(run_program(app, "predict"))
