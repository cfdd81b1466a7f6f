"""The command line: `bench batch`."""

import json as json_format
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tinyllm_bench.batching import Batch, Batches, Company

    Found = list[tuple[Batch, ...]]  # the rounds of each size

batching = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@batching.command()
def batch(
    shape: Annotated[
        str, typer.Option(metavar="NAME", help="As of bench: pico, qwen3-0.6b, ...")
    ] = "pico",
    bits: Annotated[int | None, typer.Option(metavar="N", help="Of random weights.")] = None,
    dtype: Annotated[
        str, typer.Option(metavar="float32|float16|bfloat16", help="Of the arithmetic.")
    ] = "bfloat16",
    ops: Annotated[str, typer.Option(metavar="NAME", help="What computes.")] = "auto",
    requests: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Together; may be repeated. [default: 1, 8, 16]"),
    ] = None,
    tokens: Annotated[int, typer.Option(metavar="N", help="Each of them decodes.", min=1)] = 64,
    rounds: Annotated[int, typer.Option(metavar="N", help="Of all of it.", min=1)] = 3,
    prompt: Annotated[
        int, typer.Option(metavar="N", help="Tokens of a long prompt beside others; 0: none.")
    ] = 0,
    http: Annotated[
        bool, typer.Option("--http", help="Ask a server of the same model the same, in turn.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> int:
    """Let many requests decode in one engine, and a long prompt come between.

    Sizes take turns in each round, and with --http the engine and the server, so that a machine
    that slows down slows all of them. Tokens a second are medians over the rounds.
    """
    from tinyllm_kernels import Arithmetic  # with MLX, which --help can do without

    from tinyllm_bench.batching import EngineBatches
    from tinyllm_bench.machine import Machine
    from tinyllm_bench.serving.over_http import served
    from tinyllm_bench.settings import Settings
    from tinyllm_bench.subject import Subject

    sizes = requests or [1, 8, 16]
    chosen = Arithmetic.choose(ops, dtype)
    subject = Subject.make(Settings(shape=shape, bits=bits, dtype=dtype))
    with ExitStack() as running:
        asked: dict[str, Batches] = {"engine": EngineBatches.of(subject, chosen.ops, max(sizes))}
        if http:
            server = served(subject, chosen.ops.name, dtype, max(sizes))
            asked["over HTTP"] = running.enter_context(server)
        for each in asked.values():
            each.batch(1, 4)
        taken = [
            [[each.batch(size, tokens, seed) for each in asked.values()] for size in sizes]
            for seed in range(rounds)
        ]
        companies = {
            name: each.company(prompt, every=1.0) for name, each in asked.items() if prompt
        }
    found = {
        name: [tuple(turn[size][place] for turn in taken) for size in range(len(sizes))]
        for place, name in enumerate(asked)
    }
    machine = f"{Machine.here()}; {shape}, {dtype}, ops {chosen.ops.name}"
    (_print_json if json else _print_table)(machine, found, companies)
    return 0


def _print_table(machine: str, found: "dict[str, Found]", companies: "dict[str, Company]") -> None:
    sys.stdout.write(f"{machine}\n")
    for name, sizes in found.items():
        sys.stdout.write(f"\n{name:9}  requests  tokens/s  times one  gap p50  p95 (ms)\n")
        one = _rate(sizes[0]) / sizes[0][0].requests
        for rounds in sizes:
            gaps = [gap for each in rounds for gap in each.gaps]
            sys.stdout.write(
                f"{rounds[0].requests:19}  {_rate(rounds):8.1f}  {_rate(rounds) / one:9.2f}"
                f"  {1e3 * _quantile(gaps, 0.5):7.1f}  {1e3 * _quantile(gaps, 0.95):8.1f}\n"
            )
    for name, company in companies.items():
        sys.stdout.write(
            f"\n{name}, beside a prompt of {company.prompt_tokens} tokens "
            f"({company.prompt_seconds:.1f} s): "
            f"gap p50 {1e3 * _quantile(company.gaps, 0.5):.0f} ms, "
            f"p95 {1e3 * _quantile(company.gaps, 0.95):.0f} ms; first token of "
            f"{len(company.first_tokens)} short requests p50 "
            f"{1e3 * _quantile(company.first_tokens, 0.5):.0f} ms, "
            f"max {1e3 * max(company.first_tokens, default=0):.0f} ms\n"
        )


def _print_json(machine: str, found: "dict[str, Found]", companies: "dict[str, Company]") -> None:
    from dataclasses import asdict

    document: dict[str, object] = {"machine": machine}
    for name, sizes in found.items():
        company = companies.get(name)
        document[name] = {
            "batches": [asdict(each) for rounds in sizes for each in rounds],
            "company": company and asdict(company),
        }
    sys.stdout.write(json_format.dumps(document, indent=1) + "\n")


def _rate(rounds: "tuple[Batch, ...]") -> float:
    return _quantile([each.tokens_per_second for each in rounds], 0.5)


def _quantile(numbers: "list[float] | tuple[float, ...]", share: float) -> float:
    ranked = sorted(numbers)
    return ranked[min(int(len(ranked) * share), len(ranked) - 1)] if ranked else 0.0
