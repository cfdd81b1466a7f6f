"""Checks `tools/predict` against ranks in network namespaces whose network is slowed down.

    sudo uv run tools/shaped_ranks/run.py                                    # pico, a minute
    sudo uv run tools/shaped_ranks/run.py --shape qwen3-0.6b --case 2:1000:100

A case is the number of ranks, the bandwidth in MB/s, and the latency between two ranks in
microseconds. A run without limit and delay is measured first, with the same number of ranks. The
prediction adds the time of the network to this run, and counts the bytes that rank 0 sends. Each
rank has one thread. Needs Linux, root, `ip` and /dev/net/tun. The namespaces are removed at the
end, also after Ctrl-C.
"""

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from namespace import PORT, connected
from tinyllm_bench.serving.model_files import ModelFiles

sys.path.insert(0, str(Path(__file__).parents[1]))

from predict.link import Link
from predict.messages import ring_messages
from predict.model_spec import ModelSpec

CASES = ("2:100:0", "2:10:0", "2:1:0", "2:1000:500", "2:1000:2000", "2:100:1000", "3:1000:10000")
_LONGEST = 200  # seconds of one case
_KEYS = 50  # position in a command, which has two digits in nearly all steps
_UNSHAPED = Link("unshaped", math.inf, 0.0)


@dataclass(frozen=True)
class Measured:
    """The results of rank 0; see rank.py."""

    seconds: float
    bytes: float
    packets: float


def main() -> int:
    """Measure all cases, and print each beside its prediction."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--shape", help="random weights of a shape of bench, instead of pico")
    parser.add_argument("--dtype", default="bfloat16", help="of the arithmetic")
    parser.add_argument("--tokens", type=int, default=30, help="that are timed")
    parser.add_argument("--case", action="append", type=case, metavar="RANKS:MB/S:US")
    options = parser.parse_args()
    if os.geteuid():
        parser.error("making network namespaces needs root: run it with sudo")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cases = options.case or [case(text) for text in CASES]
    with tempfile.TemporaryDirectory() as folder:
        if options.shape is None:
            spec = ModelSpec.of_checkpoint("pico", options.dtype)
            model = ModelFiles.of_model("pico", None).folder
        else:
            spec = ModelSpec.of_shape(options.shape, 4, 64, "affine", options.dtype)
            model = ModelFiles.of_shape(options.shape, 4, Path(folder), gguf=False).folder
        print(f"{spec.name}, {options.dtype}, {options.tokens} tokens, medians")
        print(
            f"{'ranks':>5} {'MB/s':>6} {'us':>6}   {'bytes':>7} {'predicted':>9} {'':>6}"
            f"   {'ms':>7} {'predicted':>9} {'':>6}"
        )
        unshaped: dict[int, Measured] = {}
        try:
            for count, link in cases:
                if count not in unshaped:
                    unshaped[count] = measure(
                        count, _UNSHAPED, model, options.dtype, options.tokens
                    )
                    show(count, _UNSHAPED, spec, unshaped[count], unshaped[count])
                found = measure(count, link, model, options.dtype, options.tokens)
                show(count, link, spec, found, unshaped[count])
        except KeyboardInterrupt:
            return 130
    return 0


def case(text: str) -> tuple[int, Link]:
    """Parse RANKS:MB/S:US into the number of ranks and a link."""
    ranks, bandwidth, latency = text.split(":")
    return int(ranks), Link(text, float(bandwidth) * 1e6, float(latency) * 1e-6)


def measure(count: int, link: Link, model: Path, dtype: str, tokens: int) -> Measured:
    """Decode with `count` ranks over a link; return the results of rank 0."""
    rank_program = str(Path(__file__).parent / "rank.py")
    command = [sys.executable, rank_program, str(model), dtype, str(tokens)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        places = stack.enter_context(connected(count, link.bandwidth, link.latency))
        hosts = folder / "ring.json"
        hosts.write_text(json.dumps([[f"{place.address}:{PORT}"] for place in places]))
        settings = {"MLX_HOSTFILE": str(hosts), "TINYLLM_NUM_THREADS": "1"}
        ranks = []
        for rank, place in enumerate(places):
            process = subprocess.Popen(
                place.command(*command),
                env=os.environ | settings | {"MLX_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C reaches only this program, which ends the ranks
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            ranks.append(process)
        said, _ = ranks[0].communicate(timeout=_LONGEST)
    if not said:
        raise RuntimeError(f"case {link.name}: rank 0 said nothing, its error is above")
    content = json.loads(said)
    return Measured(statistics.median(content["seconds"]), content["bytes"], content["packets"])


def show(count: int, link: Link, spec: ModelSpec, found: Measured, unshaped: Measured) -> None:
    """Print one case."""
    traffic = ring_messages(spec.config, spec.dtype.size, count, 0, _KEYS)
    sent = traffic.wire_bytes
    seconds = unshaped.seconds + link.seconds(traffic.hops, traffic.path_bytes)
    limit = f"{link.bandwidth / 1e6:g}"
    print(
        f"{count:5} {limit:>6} {link.latency * 1e6:6g}   {found.bytes:7.0f} {sent:9} "
        f"{sent / found.bytes - 1:+6.1%}   {found.seconds * 1e3:7.1f} {seconds * 1e3:9.1f} "
        f"{seconds / found.seconds - 1:+6.1%}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
