"""The tables of speeds: one for each instruction set, as on docs/kernels/xeon.md."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpu_kernels.measure import Document
from tinyllm_bench.errors import BenchError
from tinyllm_bench.report.tables import number, percent

OURS, BYTES, LLAMA, OPENVINO = "cpu", "cpu-int8", "llama.cpp", "openvino"
BEGIN, END = "<!-- begin: tools/cpu_kernels -->\n", "<!-- end: tools/cpu_kernels -->\n"

_COLUMNS = ("case", "tinyllm", "llama.cpp", "times", "OpenVINO", "times", "of read")


@dataclass(frozen=True)
class Case:
    """A row of the table for each instruction set."""

    label: str
    part: str  # name without the instruction set
    regime: str  # "prefill" or "decode"


CASES = (
    Case("prompt of 16", "prompt-16", "prefill"),
    Case("prompt of 128", "prompt-128", "prefill"),
    Case("prompt of 512", "prompt-512", "prefill"),
    Case("prompt of 4,096", "prompt-4096", "prefill"),
    Case("decode, empty cache", "prompt-512", "decode"),
    Case("decode, after 512 tokens", "prompt-128", "decode"),
    Case("decode, after 2,048 tokens", "prompt-16", "decode"),
    Case("decode, after 8,192 tokens", "after-8192", "decode"),
    Case("8 bits: prompt of 512", "8-bit", "prefill"),
    Case("8 bits: decode, empty cache", "8-bit", "decode"),
    Case("bfloat16: prompt of 512", "bfloat16", "prefill"),
    Case("bfloat16: decode, empty cache", "bfloat16", "decode"),
    Case("mxfp4: prompt of 512", "mxfp4", "prefill"),
    Case("mxfp4: decode, empty cache", "mxfp4", "decode"),
    Case("pico: prompt of 128", "pico", "prefill"),
    Case("pico: decode, after 128 tokens", "pico", "decode"),
    Case("one thread: prompt of 512", "one-thread", "prefill"),
    Case("one thread: decode, empty cache", "one-thread", "decode"),
    Case("two processes of one thread: prompt of 512", "two-processes", "prefill"),
    Case("two processes of one thread: decode, empty cache", "two-processes", "decode"),
)


def markdown_table(document: Document) -> str:
    """Return the tables of all instruction sets, in tokens per second."""
    return "\n".join(_isa_table(isa, document) for isa in document.isas())


def updated_page(page: str, table: str) -> str:
    """Return a page with the table between its two marks.

    Raises:
        BenchError: if the page has no marks.
    """
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise BenchError(f"--page: expected the lines {BEGIN.strip()} and {END.strip()}, got none")
    return f"{head}{BEGIN}\n{table}\n{END}{tail}"


def speeds(part: Mapping[str, Any] | None, regime: str) -> dict[str, dict[str, float]]:
    """Return speed and share of reading by program. Speeds of several processes are added.

    `cold` is 1 if a speed is that of a first call, the only sample of its process.
    """
    found: dict[str, dict[str, float]] = {}
    for document in part["documents"] if part else ():
        for row in document["results"]:
            if row["what"] == "model" and row["regime"] == regime:
                nothing = {"speed": 0.0, "of_read": 0.0, "cold": 0}
                each = found.setdefault(row["by"].split()[0], nothing)
                each["speed"] += row["tokens_per_second"]
                each["cold"] = max(each["cold"], row["cold"])
                each["of_read"] += row["share_of_read"] / len(part["documents"] if part else ())
    return found


def requests_speeds(part: Mapping[str, Any] | None) -> dict[int, float]:
    """Return the median of tokens per second by the number of requests."""
    batches = part["documents"][0]["engine"]["batches"] if part else []
    rates: dict[int, list[float]] = {}
    for batch in batches:
        rates.setdefault(batch["requests"], []).append(batch["tokens_per_second"])
    return {requests: statistics.median(found) for requests, found in rates.items()}


def long_prompt_speed(part: Mapping[str, Any] | None) -> float | None:
    """Return the speed of a long prompt beside other requests, if it was measured."""
    found = part["documents"][0]["engine"]["long_prompt"] if part else None
    return found["prompt_tokens"] / found["prompt_seconds"] if found else None


def _isa_table(isa: str, document: Document) -> str:
    lines = [f"| {isa}: {' | '.join(_COLUMNS)} |", "|---" + "|---:" * (len(_COLUMNS) - 1) + "|"]
    for case in CASES:
        found = speeds(document.parts.get(f"{isa}/{case.part}"), case.regime)
        for name in (name for name in (OURS, BYTES) if name in found):
            ours = found[name]
            cells = [case.label if name == OURS else f"{case.label}, `{name}`", _speed(ours)]
            for peer in (LLAMA, OPENVINO):
                theirs = found.get(peer)
                cells += [_speed(theirs), number(ours["speed"] / theirs["speed"]) if theirs else ""]
            cells.append(percent(ours["of_read"]) if _is_read(case) else "")
            lines.append(f"| {' | '.join(cells)} |")
    for engine, label in (("engine", "engine"), ("engine-int8", f"engine, `{BYTES}`")):
        lines += _engine_rows(label, document.parts.get(f"{isa}/{engine}"))
    return "\n".join(lines) + "\n"


def _engine_rows(engine: str, part: Mapping[str, Any] | None) -> list[str]:
    """Return a row for each number of requests, and for a long prompt beside other requests."""
    rates = requests_speeds(part)
    rows = []
    for requests, rate in rates.items():
        times = f" ({rate / rates[1]:.2f} times one)" if requests > 1 and 1 in rates else ""
        label = f"{engine}: {requests} request{'s' * (requests > 1)}"
        rows.append(f"| {label} | {number(rate)}{times} | | | | | |")
    alone = long_prompt_speed(part)
    if alone is not None:
        label = f"{engine}: prompt of 4,096 beside other requests"
        rows.append(f"| {label} | {number(alone)} | | | | | |")
    return rows


def _is_read(case: Case) -> bool:
    """Return True if memory limits the case: pico fits into a cache."""
    return case.regime == "decode" and case.part != "pico"


def _speed(row: Mapping[str, float] | None) -> str:
    return number(row["speed"]) + " †" * bool(row["cold"]) if row else ""
