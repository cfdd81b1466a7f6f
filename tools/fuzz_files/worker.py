"""One process that fuzzes one reader: `python worker.py TARGET SECONDS SEED FOLDER`.

With atheris (github.com/google/atheris), mutations are guided by the covered code. Without it, they
are mutations of the corpus alone. The process ends with an error at the first finding, and leaves
the file in the folder.
"""

import contextlib
import faulthandler
import importlib
import importlib.util
import logging
import math
import random
import sys
import tempfile
import time
from pathlib import Path

import psutil

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the folder of all tools

SECONDS = 2.0
"""Longest CPU time to read one file."""

HANG = 60
"""Seconds after which a file counts as never read. A busy machine may need some for any file."""

MEMORY_MB = 1024
"""Largest memory of the process, of which Python and MLX take 300 MB."""


def main(target: str, seconds: float, seed: int, folder: Path) -> None:
    """Fuzz one reader for some seconds."""
    logging.disable()  # the prefix store logs each damaged file
    atheris = importlib.import_module("atheris") if importlib.util.find_spec("atheris") else None
    packages = ["tinyllm_qwen", "tinyllm_engine.kv", "tinyllm_chat.transcript", "json", "jinja2"]
    with atheris.instrument_imports(include=packages) if atheris else contextlib.nullcontext():
        from fuzz_files.mutate import mutation
        from fuzz_files.targets import TARGETS, corpus

    reader, seeds, draw = TARGETS[target], corpus(target), random.Random(seed)
    # Inside `folder`, because a process that hangs or crashes does not remove it.
    with tempfile.TemporaryDirectory(dir=folder) as place:

        def check(data: bytes) -> None:
            started = time.process_time()
            reader.check(Path(place), data)
            seconds = time.process_time() - started
            if seconds > SECONDS:
                raise TimeoutError(f"{seconds:.1f} s of CPU time")

        if atheris:

            def mutate(data: bytes, size: int, seed: int) -> bytes:
                # Half of the files get mutations of libFuzzer, which knows the covered code.
                if seed % 2:
                    return bytes(atheris.Mutate(data, size))
                return mutation(data, random.Random(seed), target)[:size]

            found = folder / "corpus"
            found.mkdir()
            for name, data in seeds.items():
                (found / name).write_bytes(data)
            options = {
                "max_total_time": math.ceil(seconds),  # 0 is no limit
                "timeout": HANG,
                "rss_limit_mb": MEMORY_MB,
                "max_len": 1 << 16,
                "seed": seed + 1,
                "artifact_prefix": f"{folder}/",
                "print_final_stats": 1,
                "verbosity": 0,
            }
            flags = [f"-{name}={value}" for name, value in options.items()]
            atheris.Setup([target, str(found), *flags], check, custom_mutator=mutate)
            atheris.Fuzz()  # ends the process
        files, until = 0, time.monotonic() + seconds
        pool = list(seeds.values())
        while time.monotonic() < until:
            data = mutation(draw.choice(pool), draw, target)
            (folder / "latest").write_bytes(data)
            faulthandler.dump_traceback_later(HANG, exit=True)
            check(data)
            faulthandler.cancel_dump_traceback_later()
            # Not ru_maxrss: a process begins with that of the process that started it.
            assert psutil.Process().memory_info().rss < MEMORY_MB << 20
            files += 1
        sys.stderr.write(f"stat::number_of_executed_units: {files}\n")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
