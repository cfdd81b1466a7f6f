"""The command line: `bench serve`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

serving = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@serving.command()
def serve(
    model: Annotated[
        str,
        typer.Option(metavar="ID", help="A folder, owner/name on the Hugging Face Hub, or pico."),
    ] = "pico",
    requests: Annotated[int, typer.Option(metavar="N", help="How many are sent.")] = 32,
    rate: Annotated[
        float, typer.Option(metavar="R", help="How many a second on average; 0: all at once.")
    ] = 4.0,
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
    load. Answers are greedy. Prompts of random words begin alike for a while.
    """
    from tinyllm_qwen.hub import resolve  # with MLX, which --help can do without

    from tinyllm_bench.machine import Machine
    from tinyllm_bench.plot import check_plot
    from tinyllm_bench.serving.load import Load
    from tinyllm_bench.serving.report import as_json, draw_figures, print_figures
    from tinyllm_bench.serving.run import measure
    from tinyllm_bench.serving.served import servers

    load = Load(
        requests=requests,
        rate=rate,
        concurrency=concurrency,
        prompt_words=prompt_words,
        shared=shared,
        answer_tokens=answer_tokens,
        seed=seed,
    )
    if plot is not None:
        check_plot(plot)
    found, absent = servers(resolve(model), gguf, peers=peers)
    figures, failures = measure(load, found)
    notices = [*absent, *failures]
    for notice in notices:
        sys.stderr.write(f"bench: {notice}\n")
    if json:
        sys.stdout.write(as_json(Machine.here(), model, load, figures, notices) + "\n")
    else:
        print_figures(figures)
    if plot is not None and figures:
        draw_figures(load, figures, plot)
        sys.stderr.write(f"bench: wrote {plot}\n")
    return 0 if figures else 1
