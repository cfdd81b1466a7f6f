"""Fuzzing of the readers of checkpoints, prefix files and saved conversations.

uv run python tools/fuzz_files                          # 60 s for each reader, random mutations
uv run --with atheris python tools/fuzz_files           # mutations guided by the covered code
uv run python tools/fuzz_files --target template --seconds 600
"""

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tinyllm_bench.command_line import command, option
from tinyllm_cli.messages import UsageError, notice
from tinyllm_cli.program import new_app, run_program

WORKER = Path(__file__).with_name("worker.py")
NAMES = sorted(path.name for path in Path(__file__).with_name("corpus").iterdir())
_COUNT = "stat::number_of_executed_units:"

app = new_app()


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a run."""

    target: list[str] = option([], "NAME", f"A reader: {', '.join(NAMES)}. Default: all readers.")
    seconds: float = option(60.0, "S", "Duration for each reader.", min=0.1, max=1e6)
    seed: int = option(0, "N", "Seed of the mutations.", min=0)
    keep: str = option("findings", "FOLDER", "Folder for files that break a reader.")


def main(options: Options) -> int:
    """Read damaged files until a reader crashes, hangs, or raises an error of another kind.

    Each reader runs in a process of its own. Exit codes: as of bench, and 1 after a finding, whose
    file is kept. Add the file to the folder corpus, and mend the reader.
    """
    unknown = set(options.target) - set(NAMES)
    if unknown:
        raise UsageError(f"--target: expected {', '.join(NAMES)}, got {', '.join(unknown)}")
    if Path(options.keep).exists() and not Path(options.keep).is_dir():
        raise UsageError(f"--keep: expected a folder, got the file {options.keep}")
    return max([fuzz(name, options) for name in options.target or NAMES])


def fuzz(name: str, options: Options) -> int:
    """Fuzz one reader, and write the number of files that it has read. Return the exit code."""
    with tempfile.TemporaryDirectory() as place:
        arguments = [name, str(options.seconds), str(options.seed), place]
        done = subprocess.run(
            [sys.executable, str(WORKER), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        files = [line for line in done.stdout.splitlines() if line.startswith(_COUNT)]
        read = files[-1].removeprefix(_COUNT).strip() if files else "unknown"
        sys.stdout.write(
            f"{name}: {read} files, {'no finding' if not done.returncode else 'FINDING'}\n"
        )
        sys.stdout.flush()
        if not done.returncode:
            return 0
        kept = Path(options.keep)
        kept.mkdir(parents=True, exist_ok=True)
        for path in Path(place).iterdir():
            if path.is_file():
                shutil.copy(path, kept / f"{name}-{path.name}")
        (kept / f"{name}.log").write_text(done.stdout)
        notice(f"{name}: see {kept}/{name}.log", "fuzz_files")
        return 1


app.command()(command(Options, main))

if __name__ == "__main__":
    sys.exit(run_program(app, "fuzz_files"))
