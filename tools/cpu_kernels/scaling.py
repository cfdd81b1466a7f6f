"""Prediction of more cores from one and two threads: docs/kernels/scaling.md explains the model."""

import math
from dataclasses import dataclass

from cpu_kernels.measure import Document
from cpu_kernels.table import OURS
from tinyllm_bench.errors import BenchError
from tinyllm_bench.report.tables import number

CORES = (1, 2, 4, 8, 16, 32, 64)
NODE_CORES = 32  # cores of a NUMA node
CLOCK = 0.75  # clock of a core while all cores of a processor use AMX, by that of a single core
_BARRIERS = 6 * 28  # of a token of Qwen3-0.6B; a prompt has one more in a layer
_BARRIER = 0.15e-6  # seconds that a barrier takes longer for twice the cores of a node
_CROSSING = 0.5e-6  # seconds that a barrier takes longer between two nodes


@dataclass(frozen=True)
class Fit:
    """Seconds on n cores: `serial + parallel / n`, the law of Amdahl."""

    serial: float
    parallel: float

    @classmethod
    def of(cls, one: float, two: float) -> "Fit":
        """Return the fit of the times with one thread and with two."""
        parallel = min(one, max(0.0, 2 * (one - two)))
        return cls(one - parallel, parallel)

    def seconds(self, cores: int, *, clock: float = 1.0, least: float = 0.0) -> float:
        """Return the time on some cores. The parallel part takes at least `least` seconds."""
        nodes = math.ceil(cores / NODE_CORES)
        barrier = _BARRIER * max(0.0, math.log2(cores / nodes / 2)) + _CROSSING * (nodes - 1)
        return self.serial + max(self.parallel / cores / clock, least) + _BARRIERS * barrier


def scaling_table(document: Document, node_gbps: float) -> str:
    """Return the predicted tokens per second by the number of cores, as Markdown.

    `node_gbps` is the speed at which all cores of a node read its memory.

    Raises:
        BenchError: if the document has no runs with one and two threads.
    """
    one, two = (_rows(document, case) for case in ("one-thread", "prompt-512"))
    prompt, token = (
        Fit.of(one[regime]["median"], two[regime]["median"]) for regime in ("prefill", "decode")
    )
    tokens, nbytes = two["prefill"]["tokens"], two["decode"]["bytes"]
    lines = [
        "| cores | NUMA nodes | prompt of 512 | decode | decode, pages on one node |",
        "|---:|---:|---:|---:|---:|",
    ]
    for cores in CORES:
        nodes = math.ceil(cores / NODE_CORES)
        clock = 1.0 if cores <= 2 else CLOCK
        read = nbytes / node_gbps / 1e9
        speeds = (
            tokens / prompt.seconds(cores, clock=clock),
            1 / token.seconds(cores, least=read / nodes),
            1 / token.seconds(cores, least=read),
        )
        cells = [str(cores), str(nodes), *map(number, speeds)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _rows(document: Document, case: str) -> dict[str, dict[str, float]]:
    """Return our rows of a part by regime."""
    for name, part in document.parts.items():
        if name.endswith(f"/{case}"):
            rows = part["documents"][0]["results"]
            return {row["regime"]: row for row in rows if row["by"] == OURS}
    raise BenchError(f"--scaling: the document has no part */{case}: measure it first")
