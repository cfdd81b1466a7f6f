"""The command line: `bench batch`."""

import json as json_format
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tinyllm_bench.batching import Batch, Company

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
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> int:
    """Let many requests decode in one engine, and a long prompt come between.

    Sizes take turns in each round, so that a machine that slows down slows all of them. Tokens a
    second are medians over the rounds.
    """
    from tinyllm_engine import Engine, EngineSettings  # with MLX, which --help can do without
    from tinyllm_kernels import Arithmetic
    from tinyllm_qwen import Qwen, load

    from tinyllm_bench.batching import measure_batch, measure_company
    from tinyllm_bench.machine import Machine
    from tinyllm_bench.settings import Settings
    from tinyllm_bench.subject import Subject

    sizes = requests or [1, 8, 16]
    chosen = Arithmetic.choose(ops, dtype)
    subject = Subject.make(Settings(shape=shape, bits=bits, dtype=dtype))
    _, tokenizer = load("pico")  # its text is looked at by nobody
    weights = dict(subject.weights)
    chosen.ops.prepare(weights)
    model = Qwen(subject.config, weights, ops=chosen.ops)
    engine = Engine(
        model, tokenizer, EngineSettings(max_running=max(*sizes, 2), prefix_cache=False)
    )
    measure_batch(engine, 1, 4)
    found = [
        [measure_batch(engine, size, tokens, seed) for size in sizes] for seed in range(rounds)
    ]
    company = measure_company(engine, prompt, every=1.0) if prompt else None
    machine = f"{Machine.here()}; {shape}, {dtype}, ops {chosen.ops.name}"
    (_print_json if json else _print_table)(machine, list(zip(*found, strict=True)), company)
    return 0


def _print_table(machine: str, sizes: "list[tuple[Batch, ...]]", company: "Company | None") -> None:
    sys.stdout.write(f"{machine}\n\nrequests  tokens/s  times one  gap p50  p95 (ms)\n")
    one = _rate(sizes[0]) / sizes[0][0].requests
    for rounds in sizes:
        gaps = [gap for each in rounds for gap in each.gaps]
        sys.stdout.write(
            f"{rounds[0].requests:8}  {_rate(rounds):8.1f}  {_rate(rounds) / one:9.2f}"
            f"  {1e3 * _quantile(gaps, 0.5):7.1f}  {1e3 * _quantile(gaps, 0.95):8.1f}\n"
        )
    if company is not None:
        sys.stdout.write(
            f"\nbeside a prompt of {company.prompt_tokens} tokens "
            f"({company.prompt_seconds:.1f} s): "
            f"gap p50 {1e3 * _quantile(company.gaps, 0.5):.0f} ms, "
            f"p95 {1e3 * _quantile(company.gaps, 0.95):.0f} ms; first token of "
            f"{len(company.first_tokens)} short requests p50 "
            f"{1e3 * _quantile(company.first_tokens, 0.5):.0f} ms, "
            f"max {1e3 * max(company.first_tokens, default=0):.0f} ms\n"
        )


def _print_json(machine: str, sizes: "list[tuple[Batch, ...]]", company: "Company | None") -> None:
    from dataclasses import asdict

    document = {
        "machine": machine,
        "batches": [asdict(each) for rounds in sizes for each in rounds],
        "company": None if company is None else asdict(company),
    }
    sys.stdout.write(json_format.dumps(document, indent=1) + "\n")


def _rate(rounds: "tuple[Batch, ...]") -> float:
    return _quantile([each.tokens_per_second for each in rounds], 0.5)


def _quantile(numbers: "list[float] | tuple[float, ...]", share: float) -> float:
    ranked = sorted(numbers)
    return ranked[min(int(len(ranked) * share), len(ranked) - 1)] if ranked else 0.0
