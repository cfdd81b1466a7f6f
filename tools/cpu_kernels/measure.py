"""Runs the parts, and keeps their documents."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpu_kernels.parts import Part
from tinyllm_bench.errors import BenchError
from tinyllm_bench.report.json_text import json_text
from tinyllm_cli.messages import UsageError

FORMAT = "tinyllm-cpu-kernels/1"

_BENCH = "import sys; from tinyllm_bench.cli import main; sys.exit(main())"


@dataclass
class Document:
    """Documents of `bench` by the name of their part."""

    parts: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Document":
        """Read a document, which is empty if there is no file."""
        return cls(json.loads(path.read_text())["parts"] if path.exists() else {})

    def isas(self) -> list[str]:
        """Return the instruction sets of the parts."""
        return list(dict.fromkeys(name.split("/")[0] for name in self.parts))

    def of_isas(self, isas: Sequence[str]) -> "Document":
        """Return the parts of some instruction sets, or of all if `isas` is empty, by name.

        Raises:
            UsageError: if an instruction set has no parts.
        """
        for isa in isas:
            if isa not in self.isas():
                known = ", ".join(self.isas())
                raise UsageError(f"--isa: expected one of {known}, got {isa}")
        return Document(
            {
                name: part
                for name, part in sorted(self.parts.items())
                if not isas or name.split("/")[0] in isas
            }
        )

    def add(self, name: str, part: dict[str, Any]) -> None:
        """Add a part, or replace it."""
        self.parts[name] = part

    def write(self, path: Path) -> None:
        """Write the document."""
        content = {"format": FORMAT, "parts": dict(sorted(self.parts.items()))}
        path.write_text(json_text(content) + "\n")


def measure_part(part: Part, libraries: Mapping[str, str]) -> dict[str, Any]:
    """Run the processes of a part at the same time, and return what they measured.

    `libraries` are folders of llama.cpp by instruction set. An instruction set without a folder has
    the installed llama.cpp if it is the fastest of the machine.

    Raises:
        BenchError: if a process fails.
    """
    environment = {"TINYLLM_CPU_ISA": part.isa, **part.environment}
    if part.isa in libraries:
        environment["LLAMA_CPP_LIB_PATH"] = libraries[part.isa]
    command = [sys.executable, "-c", _BENCH, *part.arguments.split(), "--json"]
    started = time.perf_counter()
    running = [
        subprocess.Popen(
            command if cores is None else ["taskset", "-c", ",".join(map(str, cores)), *command],
            env=os.environ | environment,
            stdout=subprocess.PIPE,
        )
        for cores in part.pinned or (None,)
    ]
    outputs = [process.communicate()[0] for process in running]
    for process in running:
        if process.returncode != 0:
            raise BenchError(f"{part.name}: bench exited with code {process.returncode}")
    return {
        "command": f"bench {part.arguments}",
        "environment": {n: v for n, v in environment.items() if not n.endswith("_PATH")},
        "pinned": part.pinned,
        "seconds": round(time.perf_counter() - started, 1),
        "documents": [json.loads(output) for output in outputs],
    }
