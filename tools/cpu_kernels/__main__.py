"""Measures prompts, decoding and requests of the CPU kernels, by instruction set.

uv run python tools/cpu_kernels --out run.json --plot run.png            # everything
uv run python tools/cpu_kernels --out run.json --part amx/prompt-512     # one part again
uv run python tools/cpu_kernels --out run.json --draw --page docs/kernels/xeon.md

Each part is a run of `bench` in a process of its own. The document is written after every part.
`--llama avx2=FOLDER` names libraries of llama.cpp that were built for that instruction set.
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

app = new_app()


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a run."""

    out: Path = option(..., "FILE", "The JSON document. Parts that it has already are kept.")
    part: list[str] = option([], "NAME", "Only this part, as amx/engine; may be repeated.")
    isa: list[str] = option(
        [], "NAME", "Measure and show only this instruction set; may be repeated."
    )
    llama: list[str] = option(
        [], "ISA=FOLDER", "Libraries of llama.cpp for an instruction set; may be repeated."
    )
    draw: bool = option(False, None, "Measure nothing.")
    scaling: float | None = option(
        None, "GBPS", "Predict more cores, for NUMA nodes that read GBPS gigabytes a second."
    )
    plot: Path | None = option(None, "FILE", "Draw an image: .png, .svg or .pdf.")
    page: Path | None = option(None, "FILE", "A Markdown page with the table, to update.")


def main(options: Options) -> int:
    """Measure all parts, and print the table."""
    from cpu_kernels.measure import Document, measure_part
    from cpu_kernels.parts import choose_parts
    from cpu_kernels.scaling import scaling_table
    from cpu_kernels.table import markdown_table, updated_page
    from tinyllm_kernels import _cpu  # imported here: --help does not need MLX

    check_image(options.plot)
    document = Document.read(options.out)
    libraries = _libraries(options.llama)
    if not options.draw:
        for part in choose_parts(_cpu.instruction_sets(), options.isa, options.part):
            notice(part.name, "cpu_kernels")
            document.add(part.name, measure_part(part, libraries))
            document.write(options.out)
    shown = document.of_isas(options.isa)
    table = markdown_table(shown)
    sys.stdout.write(table)
    if options.scaling is not None:
        sys.stdout.write(f"\n{scaling_table(document, options.scaling)}")
    if options.page is not None:
        options.page.write_text(updated_page(options.page.read_text(), table))
    if options.plot is not None:
        from plot.cpu_kernels import figure_of_kernels  # takes 0.3 s, and only --plot needs it

        figure_of_kernels({"parts": shown.parts}).savefig(options.plot, dpi=120)
    return 0


def _libraries(options: list[str]) -> dict[str, str]:
    """Return the folders of llama.cpp by instruction set."""
    pairs = [each.partition("=") for each in options]
    for isa, _, folder in pairs:
        if not isa or not Path(folder, "libllama.so").exists():
            raise UsageError(f"--llama: expected ISA=FOLDER with libllama.so, got {isa}={folder}")
    return {isa: str(Path(folder).resolve()) for isa, _, folder in pairs}


app.command()(command(Options, main))

if __name__ == "__main__":
    sys.exit(run_program(app, "cpu_kernels"))
