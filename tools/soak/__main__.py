"""Soak test of `serve`: random clients for a long time, then a check for leaks.

uv run python tools/soak                     # 20 minutes, 16 clients
uv run python tools/soak --minutes 0.3       # a quick check
"""

import sys
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path

from tinyllm_bench.command_line import command, option
from tinyllm_cli.messages import notice
from tinyllm_cli.program import new_app, run_program

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the folder of all tools

app = new_app()


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a soak test."""

    model: str = option("pico", "ID", "A folder, owner/name on the Hugging Face Hub, or pico.")
    minutes: float = option(20.0, "M", "Duration.", min=0.05, max=10_000)
    clients: int = option(16, "N", "Clients at a time.", min=1, max=1000)
    memory: float = option(0.05, "GB", "Memory of the server for keys and values.", min=0.001)
    seed: int = option(0, "N", "Seed of the requests.")


def main(options: Options) -> int:
    """Send random requests for a long time, and compare the idle server before and after.

    Starts `serve`. Up to 40 percent of the clients disconnect before the answer is complete: in the
    queue, during prefill, in the middle of a stream. Some clients read slowly, some send invalid
    requests.
    Memory is short, so that requests wait for pages and are preempted. Exit codes: as of bench,
    and 1 if a value has grown or a request has failed.
    """
    from soak.resource_usage import ResourceUsage
    from soak.soak import soak
    from tinyllm_bench.machine import Machine  # imports MLX, which --help does not need
    from tinyllm_bench.report.tables import progress_line
    from tinyllm_bench.serving.model_files import ModelFiles
    from tinyllm_bench.serving.server import tinyllm

    seconds = 60 * options.minutes
    files = ModelFiles.of_model(options.model, None)
    with (
        tempfile.TemporaryDirectory() as folder,
        progress_line(round(seconds)) as progress,
        tinyllm(files, "--kv-cache-memory", str(options.memory)).running(
            Path(folder) / "log"
        ) as server,
    ):
        name = f"{options.clients} clients, seconds"

        def show(passed: float) -> None:
            progress(name, round(passed))

        found = soak(server, seconds, options.clients, options.seed, show)
    outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in found.outcomes.most_common())
    title = f"{Machine.here()}; {options.model}, {options.clients} clients, {found.seconds:,.0f} s"
    sys.stdout.write(f"{title}\n{found.outcomes.total():,} requests: {outcomes}\n\n")
    sys.stdout.write(f"{'':10}{'before':>15}{'highest':>15}{'after':>15}\n")
    for each in fields(ResourceUsage):
        usages = (found.before, found.highest, found.after)
        counts = "".join(f"{getattr(usage, each.name):15,}" for usage in usages)
        sys.stdout.write(f"{each.name:10}{counts}\n")
    for complaint in found.complaints:
        notice(complaint, "soak")
    return 1 if found.complaints else 0


app.command()(command(Options, main))

if __name__ == "__main__":
    sys.exit(run_program(app, "soak"))
