"""The command line: `bench soak`."""

import sys
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

soaking = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@soaking.command()
def soak(
    model: Annotated[
        str,
        typer.Option(metavar="ID", help="A folder, owner/name on the Hugging Face Hub, or pico."),
    ] = "pico",
    minutes: Annotated[
        float, typer.Option(metavar="M", help="How long clients come.", min=0.05, max=10_000)
    ] = 20.0,
    clients: Annotated[
        int, typer.Option(metavar="N", help="How many at a time.", min=1, max=1000)
    ] = 16,
    memory: Annotated[
        float, typer.Option(metavar="GB", help="Of the server, for keys and values.", min=0.001)
    ] = 0.05,
    seed: Annotated[int, typer.Option(metavar="N", help="Of what they do.")] = 0,
) -> int:
    """Let clients come and go for a while, and see whether the server gets back to where it was.

    Starts `serve`. Half of the clients leave before they have their answer: in the queue, in the
    prompt, in the middle of a stream; some read slowly, some ask what is refused. Memory is short,
    so that requests wait for pages and lose them. Compared is what the idle server holds after a
    tenth of the time and at the end. Exit codes: as of bench, and 1 if anything has grown, or a
    request has failed.
    """
    from tinyllm_bench.machine import Machine  # with MLX, which --help can do without
    from tinyllm_bench.progress import ProgressLine
    from tinyllm_bench.serving import soak as clients_of
    from tinyllm_bench.serving.roster import tinyllm
    from tinyllm_bench.serving.subject_files import SubjectFiles
    from tinyllm_bench.serving.vitals import Vitals

    seconds = 60 * minutes
    served = tinyllm(SubjectFiles.of_model(model, None), "--kv-cache-memory", str(memory))
    with (
        tempfile.TemporaryDirectory() as folder,
        ProgressLine() as progress,
        served.running(Path(folder) / "log") as server,
    ):
        progress.expect(round(seconds))
        progress.begin(f"{clients} clients, seconds")
        found = clients_of.soak(server, seconds, clients, seed, progress.reach)
    visits = ", ".join(f"{count:,} {outcome}" for outcome, count in found.visits.most_common())
    sys.stdout.write(f"{Machine.here()}; {model}, {clients} clients, {found.seconds:,.0f} s\n")
    sys.stdout.write(f"{found.visits.total():,} requests: {visits}\n\n")
    sys.stdout.write(f"{'':10}{'before':>15}{'highest':>15}{'after':>15}\n")
    for name in (each.name for each in fields(Vitals)):
        counts = [getattr(each, name) for each in (found.before, found.highest, found.after)]
        sys.stdout.write(f"{name:10}" + "".join(f"{count:15,}" for count in counts) + "\n")
    for complaint in found.complaints:
        sys.stderr.write(f"bench: {complaint}\n")
    return 1 if found.complaints else 0
