"""The command line: `bench serve`."""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tinyllm_bench.errors import UsageError
from tinyllm_bench.settings import PEERS

serving = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@serving.command()
def serve(
    model: Annotated[
        str | None,
        typer.Option(metavar="ID", help="A folder, owner/name on the Hub, or pico, the default."),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Random weights instead, as of bench: qwen3-0.6b, ..."),
    ] = None,
    bits: Annotated[
        int | None, typer.Option(metavar="N", help="Of random weights. [default: 4]")
    ] = None,
    requests: Annotated[int, typer.Option(metavar="N", help="How many are sent.")] = 32,
    rate: Annotated[
        list[float] | None,
        typer.Option(
            metavar="R",
            help="How many a second on average, 0: all at once; may be repeated. [default: 4]",
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(metavar="N", help="How many are under way at most.")
    ] = 64,
    prompt_words: Annotated[
        int, typer.Option(metavar="N", help="Of a prompt; about as many tokens.")
    ] = 128,
    shared: Annotated[
        float, typer.Option(metavar="S", help="Share of a prompt that all prompts begin with.")
    ] = 0.5,
    answer_tokens: Annotated[int, typer.Option(metavar="N", help="Of an answer.")] = 64,
    seed: Annotated[int, typer.Option(metavar="N", help="Same seed, same load.")] = 0,
    peers: Annotated[
        bool, typer.Option("--peers", help="Measure mlx_lm.server and llama.cpp's, where there.")
    ] = False,
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this peer, mlx-lm or llama.cpp; may be repeated."),
    ] = None,
    gguf: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same model, for llama.cpp.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of a table.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw an image: .png, .svg or .pdf.")
    ] = None,
) -> int:
    """Send requests at random times to a server, and time its answers.

    Starts `serve` with the model, and with --peers other servers after it, each with the same
    loads. Answers are greedy. Prompts of random words begin alike for a while. Exit codes: as of
    bench, and 1 if a server did not come up or answered nothing.
    """
    from tinyllm_bench.machine import Machine  # with MLX, which --help can do without
    from tinyllm_bench.plot import check_plot
    from tinyllm_bench.serving.load import Load
    from tinyllm_bench.serving.load_plot import draw_load
    from tinyllm_bench.serving.report import as_json, print_figures
    from tinyllm_bench.serving.roster import find_servers
    from tinyllm_bench.serving.run import measure
    from tinyllm_bench.serving.subject_files import SubjectFiles

    load = Load(
        requests=requests,
        concurrency=concurrency,
        prompt_words=prompt_words,
        shared=shared,
        answer_tokens=answer_tokens,
        seed=seed,
    )
    # Other seeds, so that no load finds the prompts of an earlier one in a cache.
    loads = [replace(load, rate=r, seed=seed + i) for i, r in enumerate(rate or [load.rate])]
    unknown = set(peer or ()) - set(PEERS)
    if unknown or (peer and not peers):
        raise UsageError(f"--peer: expected one of {', '.join(PEERS)}, beside --peers")
    compared = (peer or PEERS) if peers else ()
    if plot is not None:
        check_plot(plot)
    with tempfile.TemporaryDirectory() as folder:
        if shape is None:
            if bits is not None:
                raise UsageError("--bits: is for random weights; --model has its own")
            files = SubjectFiles.of_model(model or "pico", gguf)
        else:
            if model is not None or gguf is not None:
                raise UsageError("--shape: makes a model of its own, without --model and --gguf")
            files = SubjectFiles.of_shape(shape, bits, Path(folder), gguf=peers)
        found, absent = find_servers(files, compared, prompt_words + answer_tokens)
        figures, failures = measure(loads, found)
    machine = Machine.here()
    notices = [*absent, *failures]
    for notice in notices:
        sys.stderr.write(f"bench: {notice}\n")
    if json:
        sys.stdout.write(as_json(machine, files.name, loads, figures, notices) + "\n")
    else:
        print_figures(machine, files.name, figures)
    if plot is not None and figures:
        draw_load(f"{machine}; {files.name}", load, figures, plot)
        sys.stderr.write(f"bench: wrote {plot}\n")
    complete = len(figures) == len(found) * len(loads)
    return 0 if complete and all(each.answered for each in figures) else 1
